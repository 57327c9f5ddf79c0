"""The book builds strictly without torch, fails when a chapter fails, and never shows stale numbers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, build_book

pytest.importorskip("jupyter_book", reason="the book's requirements are not installed")
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import initmem_book  # noqa: E402
import notebooks  # noqa: E402
from bs4 import BeautifulSoup  # noqa: E402

from initmem.plots import SYMBOL, subscripts  # noqa: E402

FRONT = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {name: python3, display_name: Python 3}
---
"""


def test_strict_build_without_torch(built_book):
    assert (built_book / "book" / "index.html").exists()


def test_symbols_have_real_subscripts_in_running_text(built_book):
    """Also where glue pastes plain text."""
    found = 0
    for path in sorted(built_book.glob("book/*.html")):
        article = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").find("article")
        for part in article.find_all(["svg", "style", "script", "pre", "code"]):
            part.decompose()
        assert not SYMBOL.findall(article.get_text()), path.name
        found += len(article.find_all("sub"))
    assert found > 100


def test_subscripts_end_where_they_should():
    assert subscripts("η/σ_w² and T_L2, τ_interp; ‖W_0‖") == "η/σ<sub>w</sub>² and T<sub>L2</sub>, τ<sub>interp</sub>; ‖W<sub>0</sub>‖"


def test_every_module_is_in_the_reference():
    listed = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    modules = [path.stem for path in (ROOT / "initmem").glob("*.py") if not path.stem.startswith("__")]
    assert [name for name in modules if f".. automodule:: initmem.{name}\n" not in listed] == []


def test_a_failing_chapter_fails_the_build(tmp_path):
    (tmp_path / "index.md").write_text(FRONT + "# Page\n\n```{code-cell} ipython3\n1 / 0\n```\n")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    for name in ("_ext", "_static"):
        shutil.copytree(ROOT / "book" / name, tmp_path / "book" / name)
    shutil.copy(ROOT / "book" / "references.bib", tmp_path / "book")
    result = build_book(tmp_path, tmp_path / "out")
    assert result.returncode != 0
    assert "ZeroDivisionError" in result.stdout


def test_notebooks_are_in_sync():
    command = [sys.executable, str(ROOT / "book" / "_ext" / "notebooks.py"), "--check"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout


def test_notebooks_are_plain_and_repeatable(tmp_path):
    text = FRONT + "# Title\n\n```{code-cell} ipython3\n:tags: [parameters]\n\nlr = 1.0\n```\n"
    (tmp_path / "chapter.md").write_text(text, encoding="utf-8")
    (tmp_path / "page.md").write_text("# No notebook\n", encoding="utf-8")
    assert [path.name for path in notebooks.out_of_sync(tmp_path, write=False)] == ["chapter.ipynb"]
    notebooks.out_of_sync(tmp_path, write=True)
    first = (tmp_path / "chapter.ipynb").read_bytes()
    assert notebooks.out_of_sync(tmp_path, write=False) == []

    document = json.loads(first)
    assert [cell["id"] for cell in document["cells"]] == ["on-colab", "cell-000", "cell-001"]
    code = document["cells"][2]
    assert (code["metadata"]["tags"], code["outputs"], code["execution_count"]) == (["parameters"], [], None)
    assert document["metadata"]["kernelspec"]["name"] == "python3"

    (tmp_path / "chapter.md").write_text(text.replace("1.0", "2.0"), encoding="utf-8")
    assert [path.name for path in notebooks.out_of_sync(tmp_path, write=True)] == ["chapter.ipynb"]
    assert (tmp_path / "chapter.ipynb").read_bytes() != first


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("initmem/metrics.py", "book/results/laptop/sgd.parquet", "book/claims.yml", "book/chapter.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("name", ["initmem/metrics.py", "book/results/laptop/sgd.parquet", "book/claims.yml"])
def test_cache_is_stale_when_a_source_changes(tree, name):
    before = initmem_book.fingerprint(tree)
    (tree / name).write_text("changed")
    changed = initmem_book.fingerprint(tree)
    (tree / name).rename(tree / f"{name}.old.py" if name.endswith(".py") else tree / f"{name}2")
    assert len({before, changed, initmem_book.fingerprint(tree)}) == 3


def test_cache_is_kept_when_nothing_that_matters_changes(tree, monkeypatch):
    before = initmem_book.fingerprint(tree)
    (tree / "book" / "chapter.md").write_text("new text")  # the cache itself sees a chapter's own cells
    (tree / "initmem" / "__pycache__").mkdir()
    (tree / "initmem" / "__pycache__" / "metrics.py").write_text("")
    assert initmem_book.fingerprint(tree) == before
    monkeypatch.setattr(initmem_book.platform, "python_version", lambda: "3.99.0")
    assert initmem_book.fingerprint(tree) != before
