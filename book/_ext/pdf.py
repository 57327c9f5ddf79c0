"""Print the whole book to one PDF, with outline and page numbers: `python book/_ext/pdf.py [FILE]`.

Sphinx writes the book as one page (the builder `onepage` of initmem_book.py) and Chromium prints it: figures stay vectors,
links lead to pages of the PDF. `CHROMIUM` names the browser where it is not on the path.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Single pages bring styles for themselves and parts that only a screen can use. Chromium's command sends no such event.
PREPARE = """() => {
  for (const part of document.querySelectorAll("article :not(defs) > style, #explorer, #calculator")) part.remove();
  dispatchEvent(new Event("beforeprint"));
}"""
FOOTER = '<div style="width: 100%; text-align: center; font-size: 8px"><span class="pageNumber"></span></div>'


def browser_path() -> str | None:
    """The installed browser, or None. The tests look for it here too."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def write(page: Path, file: Path, path: str) -> None:
    """Print a page of the built book to a PDF file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        options = ["--disable-gpu", "--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else ["--disable-gpu"]
        browser = started.chromium.launch(executable_path=path, args=options)
        tab = browser.new_page()
        tab.goto(page.resolve().as_uri(), wait_until="networkidle")
        tab.wait_for_function("!document.querySelector('.math') || document.querySelector('.katex')")
        tab.evaluate(PREPARE)
        margin = dict.fromkeys(("top", "bottom"), "18mm") | dict.fromkeys(("left", "right"), "16mm")
        tab.pdf(
            path=file, format="A4", scale=0.72, margin=margin, outline=True, tagged=True,
            display_header_footer=True, header_template="<span></span>", footer_template=FOOTER,
        )  # fmt: skip
        browser.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "_build" / "html" / "initmem.pdf")
    file = parser.parse_args().file
    path = browser_path() or sys.exit("the PDF is printed by Chromium, and there is none: install it, or set CHROMIUM to its path")
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", ROOT, "-W", "-n", "--keep-going"]
    built = subprocess.run([*command, "--builder", "custom", "--custom-builder", "onepage"], env={**os.environ, "PYTHONUTF8": "1"})
    if built.returncode:
        sys.exit(built.returncode)
    file.parent.mkdir(parents=True, exist_ok=True)
    page = ROOT / "_build" / "onepage" / "book.html"  # up from book/: Sphinx names its style sheets as if it were there
    shutil.copy(page.parent / "book" / "index.html", page)
    write(page, file, path)
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
