"""Write the output-free .ipynb beside every chapter that is a notebook, or check that they are in sync.

    python book/_ext/notebooks.py [--check] [FOLDER]

The Markdown is the source. Papermill, nbval, Colab and Binder take only .ipynb, so the pair is committed; the bytes
depend on the Markdown alone (cell ids come from the position, and no time stamp or version is written).
"""

import argparse
import json
import sys
from pathlib import Path

import jupytext
from myst_nb.core.read import is_myst_markdown_notebook

KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def render(text: str) -> str:
    """The notebook of a chapter, as the text of an .ipynb file."""
    notebook = jupytext.reads(text, fmt="md:myst")
    cells = []
    for number, cell in enumerate(notebook.cells):
        plain = {"cell_type": cell.cell_type, "id": f"cell-{number:03d}", "metadata": dict(cell.metadata)}
        if cell.cell_type == "code":
            plain |= {"execution_count": None, "outputs": []}
        cells.append(plain | {"source": cell.source.splitlines(keepends=True)})
    document = {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def out_of_sync(folder: Path, write: bool) -> list[Path]:
    """The notebooks in a folder that differ from their chapter or are missing; with `write`, after mending them."""
    wrong = []
    for chapter in sorted(folder.glob("*.md")):
        text = chapter.read_text(encoding="utf-8")
        if not is_myst_markdown_notebook(text):
            continue
        path, content = chapter.with_suffix(".ipynb"), render(text).encode()
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
    options = parser.parse_args()
    wrong = out_of_sync(options.folder, write=not options.check)
    for path in wrong:
        print(f"{'out of sync' if options.check else 'wrote'}: {path.name}")
    if options.check and wrong:
        print("mend with: python book/_ext/notebooks.py", file=sys.stderr)
    return int(options.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
