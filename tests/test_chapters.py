"""Chapters as a reader, a re-runner and papermill meet them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import initmem
from initmem import chapters, claims, store

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted(chapters.chapters())
# Small enough to train within seconds, changed enough to matter.
QUICK = ["-p", "preset", "digits", "-p", "seeds", "2", "-p", "epochs", "2", "-p", "lr", "0.02"]


def papermill(chapter, output, *arguments, cwd=ROOT, **environment):
    source = os.path.relpath(ROOT / "book" / f"{chapter}.ipynb", cwd)
    command = [sys.executable, "-m", "papermill", source, output, "--no-progress-bar", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})


def outputs(path):
    """All HTML and text that a notebook shows."""
    cells = nbformat.read(path, as_version=4).cells
    shown = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(str(data) for output in shown for data in [output.get("data", {}), output.get("text", "")] if data)


@pytest.mark.parametrize("notebook", ["sgd-remembers.ipynb", "verdict.ipynb"])
def test_a_notebook_executes_without_torch(notebook, tmp_path):
    """nbval runs each cell; importing torch raises. Two of them: the strict build executes all, without torch as well."""
    trap = tmp_path / "torch"
    trap.mkdir()
    (trap / "__init__.py").write_text('raise ImportError("torch must not be imported by the book")\n')
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-cell-timeout=600", "-p", "no:cacheprovider", f"book/{notebook}"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_its_documented_parameters(chapter):
    cells = nbformat.read(ROOT / "book" / f"{chapter}.ipynb", as_version=4).cells
    [cell] = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    lines = cell.source.splitlines()
    assert [line.split(" = ")[0] for line in lines] == list(claims.Parameters.model_fields)
    assert all(" # " in line for line in lines), "each says what it is and may be"


# By default those that differ in what they vary; all of them with `pytest -m "slow or not slow"`.
OFTEN = ("sgd-remembers", "time-is-not-enough", "batch-slows", "rate-in-disguise")


@pytest.mark.parametrize("chapter", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in CHAPTERS])
def test_a_chapter_reruns_from_an_empty_store_with_other_parameters(chapter, tmp_path):
    """From the repository's root and from the book's folder by turns; one seed where a claim has many cells."""
    entry = claims.claim(chapters.chapters()[chapter])
    folder = [ROOT, ROOT / "book"][CHAPTERS.index(chapter) % 2]
    output, cache, seeds = tmp_path / "out.ipynb", tmp_path / "cache", 2 if len(entry.recipe()) < 5 else 1
    parameters = dict(seeds=seeds, epochs=1, lr=0.02, sigma_w=[0.1, 2.5])
    done = papermill(
        chapter, output, "-y", json.dumps(parameters), cwd=folder,
        INITMEM_DATA=str(cache), INITMEM_SHIPPED=str(empty_folder(tmp_path)),
    )  # fmt: skip
    if chapter == "travels" and "initmem data fetch fashion_mnist" in done.stderr:
        pytest.skip("Fashion-MNIST is not on this machine")
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs(output)
    assert "initmem-verdict" in shown and f"{seeds} seed" in shown and "initmem-figure" in shown
    assert store_rows(cache) == len(entry.runs(preset="digits", **parameters))


def empty_folder(tmp_path):
    folder = tmp_path / "none"
    folder.mkdir()
    return folder


def store_rows(cache):
    return sum(store.read_file(path, ["run_id"]).num_rows for path in (cache / "results").glob("*.parquet"))


def test_a_rerun_shows_both_the_readers_figures_and_the_shipped_ones(tmp_path):
    output = tmp_path / "out.ipynb"
    done = subprocess.run(
        [sys.executable, "-m", "initmem.cli", "rerun", "sgd-remembers", "-o", output, *QUICK, "-p", "sigma_w", "[0.1, 2.5]"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "INITMEM_DATA": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "your parameters" in outputs(output) and "shipped" in outputs(output)


@pytest.mark.parametrize("chapter", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd-remembers", "l2-erases", "batch-slows")), "clocks-order", "rate-in-disguise"])
def test_one_scale_is_no_question(chapter, tmp_path):
    """Shipped rows of one scale answer, nothing is trained, and the chapter says why it does not judge."""
    output = tmp_path / "out.ipynb"
    done = papermill(chapter, output, "-y", "{sigma_w: 0.6}", INITMEM_DATA=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Untested" in outputs(output) and "at least two values of σ_w" in outputs(output)
    assert not (tmp_path / "cache" / "results").exists()


@pytest.mark.parametrize(("arguments", "says"), [
    (["-p", "learning_rate", "0.1"], "unknown parameter 'learning_rate'"),
    (["-p", "lr", "fast"], "lr = 'fast' is not allowed"),
    (["-p", "preset", "digit"], "did you mean 'digits'"),
])  # fmt: skip
def test_plain_papermill_is_told_what_is_wrong(tmp_path, arguments, says):
    done = papermill("sgd-remembers", tmp_path / "out.ipynb", *arguments)
    assert done.returncode != 0 and says in done.stderr


def test_no_number_of_a_result_is_typed_in_a_chapter():
    """The paper's figures and ours reach the text through glue: none stands in the source."""
    for chapter in CHAPTERS:
        text = (ROOT / "book" / f"{chapter}.md").read_text(encoding="utf-8")
        for claim in claims.ledger().claims.values():
            for figure in claim.paper.spread_pp.values():
                assert f"{figure} pp" not in text and f"{figure:g} pp" not in text.replace("5 pp", "")


def test_shipped_rows_cover_every_claim_on_digits():
    shipped = store.current(store.read(cached=False))
    for claim in claims.ledger().claims.values():
        assert len(claims.at_hand(claim, "digits", shipped)) == len(claim.runs(preset="digits"))


def test_notebooks_carry_no_output_and_no_path():
    for path in (ROOT / "book").glob("*.ipynb"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in content["cells"])


def test_a_shipped_number_comes_back_when_its_rows_are_hidden(monkeypatch, tmp_path):
    """One cell trained anew on digits, two seeds, three scales: the spread lies within the shipped interval, give or take a seed."""
    claim = claims.claim("sgd-remembers")
    scales, parameters = [0.1, 1.0, 2.5], dict(preset="digits", seeds=2, sigma_w=[0.1, 1.0, 2.5])
    shipped = claim.shipped("digits")["sgd"]
    shipped = shipped[shipped["sigma_w"].isin(scales)]
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("INITMEM_SHIPPED", str(empty_folder(tmp_path)))
    runs = [run for run in claim.runs(**parameters) if run.optimizer == "sgd"]
    anew = initmem.sweep(runs, progress=False)
    assert len(store.read()) == len(runs) == 6, "all were trained"
    interval = initmem.spread(shipped)
    assert interval.low - 2 < initmem.spread(anew).value < interval.high + 2
    assert initmem.radial_memory(anew).value == pytest.approx(initmem.radial_memory(shipped).value, abs=0.03)
