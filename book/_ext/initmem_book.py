"""What this book needs from Sphinx beyond Jupyter Book: an execution cache that knows when it is stale, light pages."""

import hashlib
import inspect
import logging
import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from docutils import nodes
from fontTools import subset
from jupyter_cache import get_cache
from jupyter_cache.executors import load_executor
from myst_nb.core.read import is_myst_markdown_notebook
from sphinx.application import Sphinx
from sphinx.builders.singlehtml import SingleFileHTMLBuilder
from sphinx.ext.autodoc.mock import MockFinder
from sphinx.transforms.post_transforms import SphinxPostTransform

from initmem.plots import SYMBOL

# What a chapter's output depends on besides its own text.
SOURCES = ("initmem/**/*.py", "book/results/**/*", "benchmarks/results/*", "book/claims.yml")
# What the publishing workflow makes beside the pages (`make pdf slides student`), and puts at the top of the site.
FOOTER = " · ".join(
    f'<a href="{file}">{title}</a>'
    for file, title in {
        "initmem.pdf": "The whole book as PDF", "slides/fifty.html": "Slides, 50 minutes", "slides/ninety.html": "Slides, 90 minutes",
        "student/sgd-remembers.ipynb": "A student notebook",
    }.items()
)  # fmt: skip
VERSIONS = ("numpy", "scipy", "pandas", "pyarrow", "pydantic", "matplotlib", "seaborn", "myst-nb", "jupyter-book")


def fingerprint(root: Path) -> str:
    """Sixteen hex digits that change when the package, the results, the ledger or the environment does."""
    digest = hashlib.sha256()
    files = {path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()}
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        if "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    for name in VERSIONS:
        try:
            digest.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{name} missing\n".encode())
    digest.update(platform.python_version().encode())
    return digest.hexdigest()[:16]


class OnePage(SingleFileHTMLBuilder):
    """The whole book as one page, for book/_ext/pdf.py to print.

    Sphinx's own `singlehtml` would do, but some extensions name it and others do not; those then lack its nodes.
    """

    name = "onepage"

    def assemble_toc_fignumbers(self) -> dict:
        """Numbers of equations by id alone: the parent keys them by document, which only `singlehtml` looks up."""
        numbers = {}
        for kinds in self.env.toc_fignumbers.values():
            for kind, known in kinds.items():
                numbers.setdefault(kind, {}).update(known)
        return {self.config.root_doc: numbers}


class Subscripts(SphinxPostTransform):
    """Real subscripts for symbols such as σ_w and T_SGD in running text, wherever the text comes from: glue, too, is plain."""

    default_priority = 900  # once glue has been pasted
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if SYMBOL.search(text) and not isinstance(text.parent, nodes.literal | nodes.FixedTextElement | nodes.math):
                before, *found = SYMBOL.split(text)
                parts = [nodes.Text(before)]
                for base, below, after in zip(*[iter(found)] * 3, strict=True):
                    parts += [nodes.Text(base), nodes.subscript("", below), nodes.Text(after)]
                text.parent.replace(text, [part for part in parts if part.astext()])


def set_execution_cache(app: Sphinx, config: Any) -> None:
    """Keep executed chapters in a folder named by the fingerprint.

    Sphinx reads every chapter anew when this value changes, so nothing stale survives in its own cache either.
    """
    caches = Path(app.outdir).parent / ".jupyter_cache"
    current = caches / fingerprint(Path(app.srcdir))
    for old in caches.glob("[0-9a-f]" * 16):
        if old != current:
            shutil.rmtree(old, ignore_errors=True)
    config.nb_execution_cache_path = str(current)


def execute_side_by_side(app: Sphinx, env: Any, docnames: list[str]) -> None:
    """Execute the chapters that are not in the cache on all cores, before Sphinx would do it one after the other.

    What fails is not cached: Sphinx then executes it again, and says why it fails.
    """
    if app.builder.format != "html":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    for name in docnames:
        path = env.doc2path(name)
        if path.endswith(".md") and is_myst_markdown_notebook(Path(path).read_text(encoding="utf-8")):
            cache.add_nb_to_project(path, read_data={"name": "myst_nb_md", "type": "plugin"})
    if records := cache.list_project_records():
        logger = logging.getLogger(__name__)
        logger.setLevel(logging.ERROR)
        load_executor("local-parallel", cache, logger).run_and_cache(timeout=app.config.nb_execution_timeout)
        for record in records:
            cache.remove_nb_from_project(record.pk)


def set_address(app: Sphinx, config: Any) -> None:
    """Where the publishing workflow names the repository, link it, and offer Binder (environment.yml) and Colab (notebooks.py)."""
    if address := os.environ.get("INITMEM_REPOSITORY"):
        config.html_theme_options |= {
            "repository_url": address,
            "repository_branch": os.environ.get("INITMEM_BRANCH", "main"),
            "use_repository_button": True,
            "extra_footer": FOOTER,
            "launch_buttons": {
                "binderhub_url": "https://mybinder.org",
                "notebook_interface": "jupyterlab",
                **({"colab_url": "https://colab.research.google.com"} if "://github.com/" in address else {}),  # it opens no others
            },
        }


def add_math(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """Load KaTeX's style and our few lines that call it, where Sphinx loads KaTeX: on pages with math."""
    if app.registry.html_assets_policy == "always" or app.env.get_domain("math").has_equations(pagename):
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/render.js", defer="defer")


def lead_to_top(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """Let the footer's links, whose targets lie at the top, lead there from every folder."""
    if footer := context.get("theme_extra_footer"):
        context["theme_extra_footer"] = re.sub(r'href="([^"]+)"', lambda link: f'href="{context["pathto"](link[1], 1)}"', footer)


def plain_citations(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """Drop docutils' roles from the bibliography: its list has no list items, and the role of an entry is deprecated."""
    body = context.get("body", "")
    context["body"] = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">').replace(' role="doc-biblioentry"', "")


def slim_icons(app: Sphinx, exception: Exception | None) -> None:
    """Keep, of the theme's 1.8 MB of icons, the few that the pages use.

    The theme loads Font Awesome twice, as a script of every icon and as a font with a rule for every icon. The font
    alone draws the same pictures, so the script is emptied, and font and rules are reduced to the icons in use.
    """
    static = Path(app.outdir) / "_static"
    style = static / "styles" / "pydata-sphinx-theme.css"
    if exception or app.builder.format != "html" or not style.exists():
        return
    (static / "scripts" / "fontawesome.js").write_text("// The icons come from the font.\n", encoding="utf-8")
    css = style.read_text(encoding="utf-8")
    places = [*Path(app.outdir).rglob("*.html"), static / "scripts" / "pydata-sphinx-theme.js"]
    used = {name for path in places for name in re.findall(r"\bfa-[a-z0-9-]+", path.read_text(encoding="utf-8"))}

    def kept(rule: re.Match) -> str:
        names = [name for name in rule["names"].split(",") if name[1:].removesuffix(":before") in used]
        return ",".join(names) + rule["body"] if names else ""

    name = r"\.fa-[a-z0-9-]+:before"
    css = re.sub(rf'(?P<names>{name}(?:,{name})*)(?P<body>\{{content:"[^"]*"\}})', kept, css)
    everywhere = css + "".join(path.read_text(encoding="utf-8") for path in static.rglob("*.css") if path != style)
    codes = {int(code, 16) for code in re.findall(r"\\([ef][0-9a-f]{3})\b", everywhere)}
    codes |= {ord(letter) for letter in re.findall("[\ue000-\uf8ff]", everywhere)}
    for font in (static / "vendor" / "fontawesome" / "webfonts").glob("*.ttf"):
        options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True)
        loaded = subset.load_font(font, options)
        reduced = subset.Subsetter(options)
        reduced.populate(unicodes=codes)
        reduced.subset(loaded)
        subset.save_font(loaded, font.with_suffix(".woff"), options)
        css = css.replace(f'{font.stem}.woff2) format("woff2")', f'{font.stem}.woff) format("woff")')
    style.write_text(css, encoding="utf-8")


def read_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Take docstrings as plain text with `code` in backticks, and add the descriptions of a pydantic record's fields."""
    if what == "class":
        for field, info in getattr(obj, "model_fields", {}).items():
            if info.description:
                lines.append(f":param {field}: {info.description}")
    for number, line in enumerate(lines):
        parts = re.split(r"`+", line)
        parts[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", part) for part in parts[::2]]
        lines[number] = "``".join(parts) if len(parts) % 2 else line


def shorten_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """A pydantic record's or a command's signature as names and defaults; its descriptions say the rest."""
    if what == "function" and "Annotated[" in (signature or ""):
        parameters = inspect.signature(obj).parameters.values()
        return f"({', '.join(p.name if p.default is p.empty else f'{p.name}={p.default!r}' for p in parameters)})", returns
    fields = getattr(obj, "model_fields", {}) if what == "class" else {}
    if not fields:
        return None
    names = [key if info.is_required() else f"{key}={info.default!r}" for key, info in fields.items()]
    return f"(*, {', '.join(names)})", returns


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handlers."""
    # autodoc puts its stand-ins away between two modules and then would import the real torch to read its sources.
    sys.meta_path.insert(0, MockFinder(["torch", "torchvision"]))
    app.add_builder(OnePage)
    app.add_post_transform(Subscripts)
    app.connect("config-inited", set_execution_cache)
    app.connect("config-inited", set_address)
    app.connect("env-before-read-docs", execute_side_by_side)
    app.connect("html-page-context", add_math)
    app.connect("html-page-context", lead_to_top)
    app.connect("html-page-context", plain_citations)
    app.connect("build-finished", slim_icons)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
