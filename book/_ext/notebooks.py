"""Write the output-free .ipynb beside every chapter that is a notebook, or check that they are in sync.

    python book/_ext/notebooks.py [--check | --repository ADDRESS] [FOLDER]

The Markdown is the source. Papermill, nbval, Colab and Binder take only .ipynb, so the pair is committed; the bytes
depend on the Markdown alone (cell ids come from the position, and no time stamp or version is written). Every notebook
begins with a cell that makes it run on Colab; the publishing workflow gives it the repository's address.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import jupytext
from myst_nb.core.read import is_myst_markdown_notebook

NO_ADDRESS = "https://github.com/OWNER/REPOSITORY"
ADDRESS = os.environ.get("INITMEM_REPOSITORY", NO_ADDRESS)  # for what is published and not committed: slides, student notebooks
# A notebook that Colab opens from a repository stands there alone.
ON_COLAB = """\
# On Colab, fetch the book and install what is missing there. Anywhere else this cell does nothing.
import sys

if "google.colab" in sys.modules:
    !test -d /content/initmem || git clone --quiet --depth 1 ADDRESS /content/initmem
    %pip install --quiet -e "/content/initmem[train]"
    sys.path.insert(0, "/content/initmem")"""
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def render(text: str, address: str = NO_ADDRESS) -> str:
    """The notebook of a chapter, as the text of an .ipynb file that can fetch the repository at `address`."""
    notebook = jupytext.reads(text, fmt="md:myst")
    setup = {"cell_type": "code", "id": "on-colab", "metadata": {"tags": ["remove-cell"]}, "execution_count": None, "outputs": []}
    cells = [setup | {"source": ON_COLAB.replace("ADDRESS", address).splitlines(keepends=True)}]
    for number, cell in enumerate(notebook.cells):
        plain = {"cell_type": cell.cell_type, "id": f"cell-{number:03d}", "metadata": dict(cell.metadata)}
        if cell.cell_type == "code":
            plain |= {"execution_count": None, "outputs": []}
        cells.append(plain | {"source": cell.source.splitlines(keepends=True)})
    document = {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def out_of_sync(folder: Path, write: bool, address: str = NO_ADDRESS) -> list[Path]:
    """The notebooks in a folder that differ from their chapter or are missing; with `write`, after mending them."""
    wrong = []
    for chapter in sorted(folder.glob("*.md")):
        text = chapter.read_text(encoding="utf-8")
        if not is_myst_markdown_notebook(text):
            continue
        path, content = chapter.with_suffix(".ipynb"), render(text, address).encode()
        if not path.exists() or path.read_bytes() != content:
            wrong.append(path)
            if write:
                path.write_bytes(content)
    return wrong


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a notebook is out of sync")
    parser.add_argument("--repository", metavar="ADDRESS", default=NO_ADDRESS, help="where Colab finds the book")
    options = parser.parse_args()
    wrong = out_of_sync(options.folder, not options.check, options.repository)
    for path in wrong:
        print(f"{'out of sync' if options.check else 'wrote'}: {path.name}")
    if options.check and wrong:
        print("mend with: python book/_ext/notebooks.py", file=sys.stderr)
    return int(options.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
