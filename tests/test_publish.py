"""What the publishing workflow relies on."""

import re
import sys
from types import SimpleNamespace

import pytest
import yaml

from conftest import ROOT

pytest.importorskip("sphinx", reason="the book's requirements are not installed")
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import initmem_book  # noqa: E402


def test_the_repository_is_named_only_where_it_is_known(monkeypatch):
    monkeypatch.delenv("INITMEM_REPOSITORY", raising=False)
    config = SimpleNamespace(html_theme_options={"navbar_end": []})
    initmem_book.set_address(None, config)
    assert config.html_theme_options == {"navbar_end": []}
    monkeypatch.setenv("INITMEM_REPOSITORY", "https://github.com/someone/book")
    initmem_book.set_address(None, config)
    options = config.html_theme_options
    assert (options["repository_url"], options["repository_branch"]) == ("https://github.com/someone/book", "main")
    assert options["launch_buttons"]["binderhub_url"] and options["navbar_end"] == []


def test_the_workflow_calls_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    asked = {target for command in commands if command.startswith("make ") for target in command.split()[1:]}
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert asked == {"test", "book", "slides", "student"} <= made
    assert workflow["jobs"]["publish"]["needs"] == "build"
