"""Every built page by axe-core's rules, in the light and in the dark, and a reader without scripts."""

import pytest

from test_pages import Visit, pages

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")


def violations(page) -> list[str]:
    """Serious and critical violations, each with its rule, the first elements, and what axe says of them."""
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:160]} … {' '.join(node['failureSummary'].split())[:240]}"
        for one in found if one["impact"] in ("serious", "critical") for node in one["nodes"][:4]
    ]  # fmt: skip


# A page of every kind by default, all of them with `pytest -m "slow or not slow"`. Dark pages differ in colours alone,
# whose contrast test_pages measures.
KINDS = [f"book/{name}" for name in ("index", "l2-erases", "verdict", "explorer", "calculator", "teaching", "rerun", "bibliography", "api")]
CASES = [pytest.param(name, "light", marks=[] if name in KINDS else pytest.mark.slow) for name in pages()]
CASES += [("book/l2-erases", "dark"), ("book/explorer", "dark")]


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_page_is_accessible(browser, site, name, scheme):
    with Visit(browser, site, name, scheme, 1360) as visit:
        assert violations(visit.page) == []


def test_axe_finds_what_it_should(browser):
    page = browser.new_page()
    page.set_content("<html lang=en><title>t</title><main><h1>t</h1><img src='data:,'><input></main></html>")
    assert {line.split(" ")[0] for line in violations(page)} == {"image-alt", "label"}
    page.close()


@pytest.mark.parametrize("name", ["book/explorer", "book/calculator"])
def test_interactive_page_without_scripts(browser, site, name):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/{name}.html")
    assert page.locator("noscript").count()
    assert not page.locator("form.explorer-form").first.is_visible()
    if name == "book/explorer":
        assert page.locator("figure.initmem-figure svg").first.is_visible()
    context.close()
