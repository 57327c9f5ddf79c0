"""The built pages in a browser: quiet, self-contained, light, readable on a phone and in the dark."""

import re
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pandas as pd
import pytest
import yaml

import initmem
from conftest import ROOT

BUDGET = 1_500_000  # bytes a page may load in all
BUDGETS = {"book/explorer": 4_000_000}  # and where it embeds all runs


# Where text must have a contrast of 4.5:1.
READ = """
.initmem-figure text, .initmem-figure tspan, .initmem-figure figcaption, .initmem-figure figcaption *,
.initmem-provenance, .initmem-provenance *, .initmem-verdict, .initmem-verdict *,
main table :is(td, th), main table :is(td, th) *, main p, main p a"""

# What sticks out of the page and is in no box that scrolls.
WIDE = """[...document.querySelectorAll('main *')].filter((e) => {
    if (e.getBoundingClientRect().right <= innerWidth + 1) return false;
    for (let p = e.parentElement; p && p.tagName !== 'BODY'; p = p.parentElement)
        if (getComputedStyle(p).overflowX !== 'visible') return false;
    return true;
}).slice(0, 5).map((e) => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)"""

# Visible text among the selected elements that has too little contrast with what is painted behind it.
CONTRAST = """([selector, least]) => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => [[r, 0.2126], [g, 0.7152], [b, 0.0722]].reduce((sum, [value, weight]) => {
        const c = value / 255;
        return sum + weight * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    }, 0);
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const color = channels(getComputedStyle(e).backgroundColor);
            if (color.length === 3 || color[3] > 0.5) return color;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll(selector)].flatMap((e) => {
        const svg = e instanceof SVGElement;
        const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
        if (!own || !e.getClientRects().length) return [];
        const style = getComputedStyle(e);
        const [a, b] = [luminance(channels(svg ? style.fill : style.color)), luminance(behind(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        return ratio < least ? [`${ratio.toFixed(1)}:1 for ${e.textContent.trim().slice(0, 40)}`] : [];
    });
}"""


def pages() -> list[str]:
    """Every page in the table of contents, and Sphinx's own two."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *chapters, "genindex", "search"]


# Pictures with visible text smaller than so many pixels, or as wide as two panels side by side.
SMALL = """(least) => [...document.querySelectorAll('.initmem-figure svg')].filter((svg) => svg.checkVisibility()).map((svg) => {
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll('text')].filter((text) => text.textContent.trim() && !text.closest('defs'));
    return [svg.closest('figure').id, Math.min(...texts.map((text) => scale * parseFloat(getComputedStyle(text).fontSize)))];
}).filter(([, size]) => size < least)"""


class Visit:
    """A page opened in a fresh profile, and what happened while it loaded."""

    def __init__(self, browser, site: str, name: str, scheme: str, width: int):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.errors, self.requests, self.responses = [], [], []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", lambda response: self.responses.append(response))
        self.page.goto(f"{site}/{name}.html", wait_until="networkidle")
        self.page.evaluate("document.fonts.ready.then(() => null)")
        # A button that still fades in, on a busy machine, has a colour on its way from black.
        self.page.evaluate("document.getAnimations().filter((a) => a instanceof CSSTransition).forEach((a) => a.finish())")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", pages())
def test_page(browser, site, name, scheme):
    with Visit(browser, site, name, scheme, 1360) as visit:
        assert visit.errors == []
        assert [url for url in visit.requests if urlsplit(url).scheme != "data" and not url.startswith(site)] == []
        weights = {urlsplit(response.url).path: len(response.body()) for response in visit.responses}
        heaviest = sorted(weights.items(), key=lambda item: -item[1])[:5]
        assert sum(weights.values()) < BUDGETS.get(name, BUDGET), heaviest
        assert visit.page.evaluate("document.documentElement.dataset.theme") == scheme
        unnamed = """[...document.querySelectorAll('img, svg[role=img]')].filter(
            (e) => !(e.getAttribute(e.tagName === 'IMG' ? 'alt' : 'aria-label') || '').trim()).map((e) => e.outerHTML.slice(0, 80))"""
        assert visit.page.evaluate(unnamed) == []
        unset = "[...document.querySelectorAll('.math')].filter((e) => !e.querySelector('.katex')).map((e) => e.textContent)"
        assert visit.page.evaluate(unset) == []
        assert visit.page.evaluate(CONTRAST, [READ, 4.5]) == []
        assert " object at 0x" not in visit.page.inner_text("body")  # a value that was never meant to be read


@pytest.mark.parametrize("name", pages())
def test_page_on_a_phone(browser, site, name):
    with Visit(browser, site, name, "light", 390) as visit:
        assert visit.errors == []
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert visit.page.evaluate(overflow) <= 0, visit.page.evaluate(WIDE)
        assert visit.page.evaluate(SMALL, 9) == [], "text of figures, in pixels as they are seen"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_series_colours_stand_out(browser, site, scheme):
    with Visit(browser, site, pages()[0], scheme, 1360) as visit:
        visit.page.evaluate("""() => {
            const box = document.createElement('div');
            box.id = 'probe';
            for (let i = 1; i <= 5; i++) box.innerHTML += `<b style="color: var(--initmem-${i}, var(--pst-color-background))">${i}</b>`;
            document.querySelector('article').append(box);
        }""")
        assert visit.page.evaluate(CONTRAST, ["#probe b", 3]) == []


@pytest.mark.parametrize("name", ["book/index", "book/l2-erases", "book/verdict", "book/handout", "book/experiment"])
def test_print_is_readable_from_the_dark(browser, site, name):
    with Visit(browser, site, name, "dark", 800) as visit:
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.evaluate(CONTRAST, [READ, 4.5]) == []


def test_search_finds_a_term(browser, site):
    with Visit(browser, site, "search", "light", 1360) as visit:
        visit.page.goto(f"{site}/search.html?q=bootstrap")
        visit.page.wait_for_selector("#search-results li a")
        assert "glossary" in " ".join(visit.page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)"))
        assert visit.errors == []


def test_search_box_opens_from_a_chapter(browser, site):
    with Visit(browser, site, "book/glossary", "light", 1360) as visit:
        visit.page.keyboard.press("Control+k")
        visit.page.wait_for_selector("#pst-search-dialog[open] input[type=search]")
        visit.page.keyboard.type("bootstrap")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#search-results li a")
        assert visit.errors == []


def test_a_figure_can_be_taken_away_as_picture_and_as_numbers(browser, site):
    with Visit(browser, site, "book/sgd-remembers", "dark", 1360) as visit:
        with visit.page.expect_download() as picture:
            visit.page.get_by_text("Picture (SVG)").first.click()
        svg = Path(picture.value.path()).read_text(encoding="utf-8")
        assert ElementTree.fromstring(svg).tag.endswith("svg") and "var(" not in svg, "a file knows nothing of the page's variables"
        marks = [part for part in ElementTree.fromstring(svg).iter() if part.tag.split("}")[1] in ("use", "path", "text")]
        assert marks and not any("rgb(0, 0, 0)" in part.get("style", "") for part in marks), "in the dark no mark is black"
        with visit.page.expect_download() as numbers:
            visit.page.get_by_text("Data (CSV)").first.click()
        rows = pd.read_csv(numbers.value.path())
        claim = initmem.claim("sgd-remembers")
        sgd = claim.shipped("digits")["sgd"]
        mine = rows.query("dataset == 'digits' and optimizer == 'sgd' and sigma_w == 0.1").iloc[0]
        assert mine["runs"] == 10
        assert mine["test_accuracy"] == pytest.approx(sgd[sgd["sigma_w"] == 0.1]["test_accuracy"].mean(), abs=1e-4)
        visit.page.get_by_text("Its runs").first.click()
        visit.page.wait_for_selector("#explorer-only:visible")
        assert " 2 recipes" in visit.page.text_content("#explorer-count"), "SGD and SGD with momentum on digits; data are never mixed"
        assert visit.errors == []


def test_figures_keep_their_styles_in_print(browser, site):
    from pdf import PREPARE

    with Visit(browser, site, "book/depth-breaks", "light", 1360) as visit:
        visit.page.emulate_media(media="print")
        visit.page.evaluate(PREPARE)
        grounds = visit.page.evaluate("""() => [...document.querySelectorAll('.initmem-wide svg')].map((svg) =>
            getComputedStyle(svg.querySelector('path:not(defs path)')).fill)""")
        assert grounds and set(grounds) == {"none"}, "without its styles a picture is one black box"


def test_no_two_pictures_of_the_book_share_a_name(built_book):
    """All chapters stand on one page in the PDF."""
    seen = {}
    for page in sorted(built_book.glob("book/*.html")):
        for svg in re.findall(r"<svg role=\"img\".*?</svg>", page.read_text(encoding="utf-8"), re.DOTALL):
            if name := re.search(r' id="([^"]+)"', svg):
                content = svg[svg.index("<defs>") :]
                assert seen.setdefault(name[1], content) == content, (page.name, name[1])
    assert len(seen) > 40
