"""Slides that stand alone, and student notebooks without solutions that run."""

import json
import re
import sys

import jupytext
import pytest

from conftest import ROOT

nbclient = pytest.importorskip("nbclient", reason="the book's requirements are not installed")
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import slides  # noqa: E402
import student  # noqa: E402

CHAPTERS = [path for path in sorted((ROOT / "book").glob("*.md")) if "{exercise" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_solutions_go_and_all_else_stays(chapter):
    text = chapter.read_text(encoding="utf-8")
    stripped = student.without_solutions(text)
    labels = re.findall(r"^:label: (ex-\S+)", text, re.MULTILINE)
    assert labels and re.findall(r"^:label: (ex-\S+)", stripped, re.MULTILINE) == labels
    assert stripped.count(student.ANSWER) == len(re.findall(r"^`+\{solution(?:-start)?\}", text, re.MULTILINE)) > 0
    first = text.index("{exercise-start}")
    assert stripped[:first] == text[:first]


def test_both_forms_of_a_solution_go():
    body = "before\n\n````{solution-start} ex-a\n:class: dropdown\n````\n```{code-cell}\nsecret = 1\n```\nsecret\n````{solution-end}\n````\nbetween\n"
    body += "```{solution} ex-b\n:class: dropdown\nsecret\n```\nafter\n"
    assert student.without_solutions(body) == f"before\n\n{student.ANSWER}between\n{student.ANSWER}after\n"
    with pytest.raises(ValueError, match="not closed"):
        student.without_solutions("````{solution-start} ex-a\n````\nsecret\n")


def test_a_student_notebook_runs_on_shipped_results(tmp_path, monkeypatch):
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "empty"))
    chapter = ROOT / "book" / "sgd-remembers.md"
    notebook = jupytext.reads(student.notebooks.render(student.without_solutions(chapter.read_text(encoding="utf-8"))), fmt="ipynb")
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [cell.source for cell in notebook.cells].count("# Your answer") >= 3
    assert "initmem-figure" in json.dumps(notebook)


@pytest.fixture(scope="module")
def decks():
    return slides.decks((ROOT / "book" / "slides" / "lesson.md").read_text(encoding="utf-8"))


def test_decks_stand_alone(decks):
    for name, (page, notebook) in decks.items():
        assert not re.search(r"(?:src|href)=[\"']?(?!#|data:)[^\"' >]+|url\((?!#|&quot;#)|@import", page), name
        assert "{glue" not in page + notebook and "{{" not in page + notebook
        assert "initmem.sweep(runs)" in notebook
        assert page.count("initmem-figure") >= 3 and f"A lesson of {slides.DECKS[name]} minutes" in page
    assert "In pairs" in decks["ninety"][0] and "In pairs" not in decks["fifty"][0] + decks["fifty"][1]


def test_keys_move_through_a_deck(decks, browser, tmp_path):
    (tmp_path / "deck.html").write_text(decks["fifty"][0], encoding="utf-8")
    page = browser.new_context(viewport={"width": 1280, "height": 720}).new_page()
    page.goto((tmp_path / "deck.html").as_uri())
    count = page.evaluate("document.querySelectorAll('section').length")
    assert count > 8
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash === '#2'")
    page.keyboard.press("End")
    page.wait_for_function(f"location.hash === '#{count}'")
    assert not page.locator("aside").first.is_visible()
    page.keyboard.press("Home")
    page.keyboard.press("n")
    assert page.locator("aside").first.is_visible()
    too_tall = "[...document.querySelectorAll('section')].map((s, i) => [i + 1, s.scrollHeight]).filter(([, h]) => h > innerHeight + 1)"
    page.keyboard.press("n")
    assert page.evaluate(too_tall) == []
    page.context.close()
