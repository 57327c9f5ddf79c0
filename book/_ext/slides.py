"""Write a slide deck for each lesson: one HTML file that needs nothing else, and a notebook to run live.

    python book/_ext/slides.py [FOLDER]

Both come from book/slides/lesson.md. A heading of level 1 or 2 starts a slide, `<!-- only DECK -->` keeps it out of the
other deck, and a quotation is a note for the speaker. Code cells are executed on the shipped results, and `{glue:text}`
works as in the book.
"""

import argparse
import html
import re
import sys
from pathlib import Path

import jupytext
import nbclient
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

sys.path.insert(0, str(Path(__file__).resolve().parent))
import notebooks  # noqa: E402

BOOK = Path(__file__).resolve().parents[1]
DECKS = {"fifty": 50, "ninety": 90}  # minutes
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


def executed(text: str) -> list:
    """The cells of a deck, with outputs. Raises nbclient's error, which shows the cell, if one fails."""
    notebook = jupytext.reads(text, fmt="md:myst")
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(BOOK)}}).execute()
    return notebook.cells


def _output(output: dict) -> str:
    if output["output_type"] == "stream":
        return f"<pre>{html.escape(output['text'])}</pre>" if output["name"] == "stdout" else ""
    data = output.get("data", {})
    return data.get("text/html") or f"<pre>{html.escape(data.get('text/plain', ''))}</pre>"


def with_values(text: str, cells: list) -> str:
    """Text with the values that executed cells have glued."""
    outputs = [output for cell in cells for output in cell.get("outputs", []) if "scrapbook" in output.get("metadata", {})]
    values = {output["metadata"]["scrapbook"]["name"].split("/")[-1]: next(iter(output["data"].values())).strip("'") for output in outputs}
    return re.sub(r"\{glue:text\}`([^`]+)`", lambda match: values[match[1]], text)


def body(cells: list) -> str:
    """The slides, one `section` each."""
    parts = []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            rendered = MARKDOWN.render(with_values(cell["source"], cells))
            parts.append(re.sub(r"<h[12]>", r"</section><section>\g<0>", rendered))
        else:
            tags = cell["metadata"].get("tags", [])
            if not {"hide-input", "remove-input"} & set(tags):
                parts.append(highlight(cell["source"], PythonLexer(), HtmlFormatter()))
            parts += [_output(output) for output in cell["outputs"] if "scrapbook" not in output.get("metadata", {})]
    text = "".join(parts).replace("<blockquote>", '<aside aria-label="Notes for the speaker">').replace("</blockquote>", "</aside>")
    return text[text.index("</section>") + len("</section>") :] + "</section>"


def kept(slides: list[str], deck: str) -> str:
    """Those slides that belong to a deck."""
    mine = [slide for slide in slides if not (only := re.search(r"<!-- only (\w+) -->", slide)) or only[1] == deck]
    return "".join(mine).replace("{{minutes}}", str(DECKS[deck]))


def decks(text: str) -> dict[str, tuple[str, str]]:
    """The HTML page and the notebook of each deck."""
    style = (BOOK / "slides" / "deck.css").read_text(encoding="utf-8")
    colours = re.search(r'html\[data-theme="light"\] \{.*?\}', (BOOK / "_static" / "custom.css").read_text(encoding="utf-8"), re.DOTALL)[0]
    script = (BOOK / "slides" / "deck.js").read_text(encoding="utf-8")
    title = html.escape(re.search(r"^# (.+)$", text, re.MULTILINE)[1])
    head = (
        f'<!doctype html>\n<html lang="en" data-theme="light"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{colours}\n{HtmlFormatter().get_style_defs()}\n{style}</style></head><body><main>"
    )
    cells = executed(text)
    slides = re.split("(?=<section>)", body(cells))
    sources = re.split(r"(?m)^(?=##? )", with_values(text, cells))
    return {
        deck: (f"{head}{kept(slides, deck)}</main><script>{script}</script></body></html>\n", notebooks.render(kept(sources, deck), notebooks.ADDRESS))
        for deck in DECKS
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write a slide deck for each lesson.")
    parser.add_argument("folder", nargs="?", type=Path, default=BOOK.parent / "_build" / "slides")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for deck, (page, notebook) in decks((BOOK / "slides" / "lesson.md").read_text(encoding="utf-8")).items():
        (folder / f"{deck}.html").write_text(page, encoding="utf-8")
        (folder / f"{deck}.ipynb").write_text(notebook, encoding="utf-8")
        print(f"wrote {folder / deck}.html and .ipynb")


if __name__ == "__main__":
    main()
