"""Chapters as notebooks: checked parameters in, an executed notebook or page out, by papermill."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from initmem.claims import Claim, Parameters, at_hand, claim, ledger
from initmem.config import PRESETS, InitmemError, Run, unknown, writing
from initmem.config import preset as preset_run
from initmem.data import TITLES
from initmem.metrics import by_seed
from initmem.store import book_dir, current, read


def chapters() -> dict[str, str]:
    """Chapters that can be rerun: notebook name → id of its claim."""
    return {entry.chapter: name for name, entry in ledger().claims.items()}


def check(variables: Mapping[str, Any]) -> Parameters:
    """The parameters among a chapter's variables, checked; call it with `globals()` behind the parameters cell.

    Papermill injects whatever name it is given, so a misspelt one would change nothing, silently: every plain variable
    that is not a parameter raises InitmemError.
    """
    plain = {
        name: value
        for name, value in variables.items()
        if not name.startswith("_")
        and (value is None or isinstance(value, bool | int | float | str | list | tuple | dict) or hasattr(value, "__array__"))
    }
    for name in ("In", "Out", "PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH"):  # a notebook's own
        plain.pop(name, None)
    return Parameters(**plain)


def choose_runs(claim: Claim, parameters: Parameters, fresh: bool = False, brief: bool = False) -> list[Run]:
    """The runs of a claim: all that the ledger asks for where rows at hand answer, the part to train live where not.

    A number of seeds that the reader asked for means the whole grid, unless it must be `brief`.
    """
    runs = claim.runs(parameters)
    if parameters.seeds is None or brief:
        table = current(read(columns=["run_id", "engine", "data_fingerprint"]))
        known = set(table["run_id"])
        copies = table["data_fingerprint"].unique()
        if fresh or not any(known.issuperset(run.run_id(copy) for run in runs) for copy in copies):
            runs = claim.runs(parameters, live=True)
    return runs


def panels(claim: Claim, parameters: Parameters, results: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
    """Cells to show side by side, by title: the reader's own first, then each preset's shipped ones."""
    shipped = current(read(cached=False))
    shown = {}
    for preset in PRESETS:
        rows = at_hand(claim, preset, shipped)
        if preset == parameters.preset:
            same = set(rows["run_id"]) == set(results["run_id"])
            mine = claim.split(results, parameters)
            shown[_title(preset, mine, "" if same or rows.empty else ", your parameters")] = mine
        if len(rows) and preset != parameters.preset and claim.verdict(claim.split(rows, preset=preset)).outcome == "untested":
            continue  # a few rows that another claim brought along answer nothing here
        if len(rows) and (preset != parameters.preset or not same):
            theirs = claim.split(rows, preset=preset)
            shown[_title(preset, theirs, ", shipped" if preset == parameters.preset else "")] = theirs
    return {title: cells for title, cells in shown.items() if cells}


def _title(preset: str, cells: dict[str, pd.DataFrame], note: str) -> str:
    return f"{place(preset, cells)}{note} ({seeds_in(cells)})"


def place(preset: str, cells: dict[str, pd.DataFrame]) -> str:
    """The preset, and on which data where they are not its own: `digits, on Fashion-MNIST`."""
    names = sorted({name for rows in cells.values() for name in rows["dataset"]} - {preset_run(preset).dataset})
    return preset + (f", on {' and '.join(TITLES.get(name, name) for name in names)}" if names else "")


def seeds_in(cells: dict[str, pd.DataFrame]) -> str:
    """How many seeds have every σ_w: of the recipe with fewest and of that with most, `1 to 3 seeds`."""
    numbers = sorted({len(by_seed(rows)) for rows in cells.values()}) or [0]
    ends = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    return f"{ends} seed{'s' * (ends != '1')}"


def rerun(chapter: str, parameters: Parameters, output: Path | None, as_html: bool) -> list[Path]:
    """Execute a chapter with parameters. Returns the files written: the notebook and, if asked for, a page beside it."""
    name = chapter.removesuffix(".ipynb").removesuffix(".md").removeprefix("book/")
    if name not in chapters():
        raise unknown("chapter", name, chapters())
    if importlib.util.find_spec("papermill") is None:
        raise InitmemError("rerunning a chapter needs papermill: install it with `pip install 'initmem[book]'`")
    claim(chapters()[name]).runs(parameters)  # a batch larger than the training set, say, is found before anything runs
    import papermill

    output = output or Path(f"{name}-rerun.ipynb")
    if not output.parent.is_dir():
        raise InitmemError(f"the folder {output.parent} does not exist: create it or choose another with -o")
    if output.is_dir() or output.suffix != ".ipynb" or book_dir() in output.absolute().parents:
        raise InitmemError(f"-o {output} cannot be the notebook: give a file that ends in .ipynb, outside the book")
    given = parameters.model_dump(exclude_unset=True)
    try:
        with writing(output):
            papermill.execute_notebook(book_dir() / f"{name}.ipynb", output, given, cwd=book_dir(), progress_bar=True)
    except papermill.PapermillExecutionError as error:
        if match := re.search(r"InitmemError: (.*)", f"{error.ename}: {error.evalue}"):
            raise InitmemError(match[1]) from None
        raise InitmemError(f"the chapter stopped at cell {error.exec_count}: {error.ename}: {error.evalue}; see {output}") from None
    if not as_html:
        return [output]
    return [output, _page(output, name)]


def _page(notebook: Path, name: str) -> Path:
    """Render one executed notebook in the book's own style. Returns the page, in a folder that works offline."""
    book = book_dir()
    if not (book.parent / "_config.yml").exists() or importlib.util.find_spec("jupyter_book") is None:
        raise InitmemError(f"{notebook} is written, but a page needs jupyter-book and a checkout: make install")
    config = yaml.safe_load((book.parent / "_config.yml").read_text(encoding="utf-8"))
    config["execute"]["execute_notebooks"] = "off"
    config["exclude_patterns"].remove("book/*.ipynb")
    target = notebook.with_suffix("").with_name(notebook.stem + "_html")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for part in ("_static", "_ext"):
            shutil.copytree(book / part, source / "book" / part)
        for part in ("references.bib", "bibliography.md", "glossary.md"):  # so that citations and terms lead somewhere
            shutil.copy(book / part, source / "book")
        shutil.copy(notebook, source / "book" / f"{name}.ipynb")
        (source / "_config.yml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        (source / "_toc.yml").write_text(f"format: jb-book\nroot: book/{name}\nchapters: [{{file: book/glossary}}, {{file: book/bibliography}}]\n", encoding="utf-8")
        command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", source]
        built = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PYTHONUTF8": "1"})
        html = source / "_build" / "html"
        if built.returncode or not (html / "book" / f"{name}.html").exists():
            raise InitmemError(f"{notebook} is written, but its page could not be built: {built.stdout.splitlines()[-1]}")
        with writing(target):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(html, target)
    return target / "book" / f"{name}.html"
