"""What the publishing workflow relies on."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from conftest import ROOT

pytest.importorskip("sphinx", reason="the book's requirements are not installed")
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import initmem_book  # noqa: E402
import notebooks  # noqa: E402


def test_the_repository_is_named_only_where_it_is_known(monkeypatch):
    monkeypatch.delenv("INITMEM_REPOSITORY", raising=False)
    config = SimpleNamespace(html_theme_options={"navbar_end": []})
    initmem_book.set_address(None, config)
    assert config.html_theme_options == {"navbar_end": []}
    monkeypatch.setenv("INITMEM_REPOSITORY", "https://github.com/someone/book")
    initmem_book.set_address(None, config)
    options = config.html_theme_options
    assert (options["repository_url"], options["repository_branch"]) == ("https://github.com/someone/book", "main")
    assert {"binderhub_url", "colab_url"} <= set(options["launch_buttons"]) and options["navbar_end"] == []
    monkeypatch.setenv("INITMEM_REPOSITORY", "https://example.org/someone/book")  # Colab opens notebooks from GitHub alone
    initmem_book.set_address(None, config)
    assert "colab_url" not in config.html_theme_options["launch_buttons"]


def test_every_page_of_a_published_book_links_the_pdf(tmp_path, monkeypatch):
    """A page in a folder and one at the top, such as the index: a small site with this book's own extension."""
    monkeypatch.setenv("INITMEM_REPOSITORY", "https://github.com/someone/book")
    (tmp_path / "book").mkdir()
    (tmp_path / "index.md").write_text("# Top\n", encoding="utf-8")
    (tmp_path / "book" / "page.md").write_text("---\norphan: true\n---\n# Page\n", encoding="utf-8")
    (tmp_path / "conf.py").write_text("extensions = ['sphinx.ext.autodoc', 'myst_nb', 'initmem_book']\nhtml_theme = 'sphinx_book_theme'\nhtml_theme_options = {}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "book" / "_ext"))
    subprocess.run([sys.executable, "-m", "sphinx", "-q", tmp_path, tmp_path / "out"], check=True)
    for page, link in {"genindex.html": "initmem.pdf", "index.html": "initmem.pdf", "book/page.html": "../initmem.pdf"}.items():
        assert f'<a href="{link}">The whole book as PDF</a>' in (tmp_path / "out" / page).read_text(encoding="utf-8"), page


@pytest.mark.parametrize("colab", [False, True])
def test_the_first_cell_fetches_the_book_on_colab_and_does_nothing_elsewhere(tmp_path, colab):
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), source], check=True)
    assert notebooks.out_of_sync(source / "book", True, source.as_uri())
    (cell,) = [cell for cell in json.loads((source / "book" / "sgd-remembers.ipynb").read_text(encoding="utf-8"))["cells"] if cell["id"] == "on-colab"]
    script = "\n".join(
        [
            "import sys, types",
            "sys.modules['google.colab'] = types.ModuleType('google.colab')" if colab else "",
            "get_ipython().register_magic_function(lambda line: print('pip', line), magic_name='pip')",
            "".join(cell["source"]).replace("/content", str(tmp_path / "content")),
            "import initmem; print(initmem.__file__)",
        ]
    )
    (tmp_path / "content").mkdir()
    (tmp_path / "cell.ipy").write_text(script, encoding="utf-8")
    out = subprocess.run([sys.executable, "-m", "IPython", "cell.ipy"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    fetched = tmp_path / "content" / "initmem"
    assert fetched.exists() == colab
    assert (f'pip install --quiet -e "{fetched}[train]"' in out) == colab == ("pip" in out)
    assert out.splitlines()[-1] == str((fetched if colab else ROOT) / "initmem" / "__init__.py")


def test_the_workflow_calls_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    asked = {target for command in commands if command.startswith("make ") for target in command.split()[1:]}
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert asked == {"test", "book", "slides", "student", "pdf"} <= made
    assert workflow["jobs"]["publish"]["needs"] == "build"


@pytest.mark.slow
def test_the_whole_book_prints_to_one_file(tmp_path):
    file = tmp_path / "book.pdf"
    subprocess.run([sys.executable, ROOT / "book" / "_ext" / "pdf.py", file], check=True)
    content = file.read_bytes()
    chapters = re.findall(r"file: ", (ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert content.startswith(b"%PDF") and b"/Outlines" in content
    assert len(re.findall(rb"/Type\s*/Page\b", content)) > 2 * len(chapters)
