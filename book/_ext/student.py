"""Write the student's notebook of every chapter with exercises: the same cells, with the solutions taken out.

    python book/_ext/student.py [FOLDER]
"""

import argparse
import re
import sys
from pathlib import Path

from myst_nb.core.read import is_myst_markdown_notebook

sys.path.insert(0, str(Path(__file__).resolve().parent))
import notebooks  # noqa: E402

BOOK = Path(__file__).resolve().parents[1]
# A solution is one directive, or everything between a start and an end; fences may be of any length.
SOLUTION = re.compile(
    r"^`{3,}\{solution-start\}.*?^`{3,}\{solution-end\}\n`{3,}\n|^(?P<fence>`{3,})\{solution\}.*?^(?P=fence)\n", re.DOTALL | re.MULTILINE
)
ANSWER = "```{code-cell} ipython3\n# Your answer\n```\n"


def without_solutions(text: str) -> str:
    """A chapter's text with an empty cell in the place of each solution. Raises ValueError if one would be left."""
    stripped = SOLUTION.sub(ANSWER, text)
    if "{solution" in stripped:
        raise ValueError("a solution directive is left: is one not closed?")
    return stripped


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=BOOK.parent / "_build" / "student")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for chapter in sorted(BOOK.glob("*.md")):
        text = chapter.read_text(encoding="utf-8")
        if is_myst_markdown_notebook(text) and "{exercise" in text:
            (folder / f"{chapter.stem}.ipynb").write_text(notebooks.render(without_solutions(text), notebooks.ADDRESS), encoding="utf-8")
            print(f"wrote {folder / chapter.stem}.ipynb")


if __name__ == "__main__":
    main()
