"""The run explorer and the forgetting calculator: what they embed is what is shipped, and what they show is what Python computes."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from initmem import metrics, plots, store
from initmem.clocks import active_clock, run_clocks
from initmem.config import preset

pytest.importorskip("sphinx", reason="the book's requirements are not installed")
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import explorer  # noqa: E402


@pytest.fixture(scope="module")
def shipped() -> pd.DataFrame:
    return store.read(cached=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shipped):
    """Bare pages with the two, opened as files."""
    folder = tmp_path_factory.mktemp("interactive")
    shutil.copytree(ROOT / "book" / "_static" / "explorer", folder / "static")
    for name in ("explorer", "calculator"):
        body = explorer.markup(name, shipped, "static")
        (folder / f"{name}.html").write_text(f'<!doctype html><meta charset="utf-8"><title>{name}</title><body>{body}', encoding="utf-8")
    return folder


@pytest.fixture
def visit(browser, folder):
    """A function that opens one of them, and fails the test if the page complains or asks for anything outside."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    faults = []

    def opened(name: str, anchor: str = ""):
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else faults.append(request.url))
        page.goto((folder / f"{name}.html").as_uri() + anchor)
        return page

    yield opened
    context.close()
    assert faults == []


def test_embedded_runs_are_the_shipped_ones(shipped):
    data = json.loads(json.dumps(explorer.explorer_data(shipped), allow_nan=False))
    rows = shipped.set_index("run_id")
    runs = data["runs"]
    assert sorted(runs["id"]) == sorted(rows.index)
    for i, name in enumerate(runs["id"]):
        row, recipe = rows.loc[name], data["recipes"][runs["recipe"][i]]
        assert {field: recipe[field] for field in explorer.RECIPE} == pytest.approx({field: row[field] for field in explorer.RECIPE})
        assert {key: data["stamps"][runs["stamp"][i]][key] for key in explorer.STAMP} == {key: row[key] for key in explorer.STAMP}
        assert (runs["sigma"][i], runs["seed"][i]) == (row["sigma_w"], row["seed"])
        assert runs["selected"][i] == pytest.approx(100 * row["test_accuracy"], abs=0.01)
        kept = data["epochs"][str(row["epochs"])]
        assert kept[0] == 0 and kept[-1] == row["epochs"] and len(kept) <= 20
        assert runs["norm"][i] == pytest.approx([row["norm"][epoch] for epoch in kept if epoch < len(row["norm"])], rel=0.006)


def test_a_diverged_run_and_many_runs_fit(shipped):
    one = shipped.iloc[[0]].copy()
    one["norm"] = [np.array([1.0, np.inf, np.nan], dtype=np.float32)]
    one["train_accuracy"], one["status"], one["wall_seconds"] = [np.array([], dtype=np.float32)], "diverged", np.nan
    runs = explorer.explorer_data(one)["runs"]
    assert runs["norm"][0][0] == 1.0 and set(runs["norm"][0][1:]) <= {None} and runs["train"] == [None]
    many = pd.concat([shipped.assign(run_id=shipped["run_id"] + str(i)) for i in range(3000 // len(shipped) + 1)], ignore_index=True)
    assert len(explorer.markup("explorer", many, "static")) / len(many) < 220  # bytes a run


def test_explorer_shows_what_python_measures(visit, shipped):
    page = visit("explorer")
    page.check("text=with pilot runs")
    sizes = {}
    for dataset in page.eval_on_selector_all("select[name=data] option", "all => all.map((o) => o.value)"):
        page.select_option("select[name=data]", dataset)
        for name in ("network", "batch_size", "epochs", "precision"):
            page.select_option(f"select[name={name}]", "")
        shown = page.eval_on_selector_all("#explorer-recipes tr", "all => all.map((r) => [+r.dataset.recipe, r.dataset.spread, r.innerText])")
        sizes |= {number: (spread, text.split("\t")) for number, spread, text in shown}
    frame = shipped.sort_values(["dataset", "optimizer", "lr", "seed", "sigma_w"], ignore_index=True)
    groups = dict(list(frame.groupby(np.array(explorer.recipes(frame)[1]))))
    assert sizes.keys() == groups.keys()
    for number, rows in groups.items():
        spread, cells = sizes[number]
        seeds = len(metrics.by_seed(rows))
        assert [int(cell) for cell in cells[-2:]] == [seeds, len(rows)]
        if rows["sigma_w"].nunique() > 1 and seeds:
            assert float(spread) == pytest.approx(metrics.spread(rows).value, abs=0.01)
            assert float(cells[4]) == pytest.approx(metrics.spread(rows).value, abs=0.06)
        else:
            assert cells[4] == "–"


def test_explorer_by_keyboard(visit, shipped):
    page = visit("explorer")
    counted = lambda: int(page.text_content("#explorer-count").split()[0])  # noqa: E731
    deciding = shipped[(shipped["dataset"] == "digits") & (shipped["seed"] < explorer.PILOT)]
    for field in ("arch", "batch_size", "epochs", "precision"):  # it starts with what most runs have
        deciding = deciding[deciding[field] == deciding[field].mode()[0]]
    assert counted() == len(deciding)
    page.focus("input[value=adam]")
    page.keyboard.press("Space")
    assert counted() == (deciding["optimizer"] != "adam").sum()
    page.focus("select[name=from]")
    page.keyboard.press("End")
    assert counted() == ((deciding["optimizer"] != "adam") & (deciding["sigma_w"] == shipped["sigma_w"].max())).sum()
    page.focus("button[type=reset]")
    page.keyboard.press("Enter")
    page.wait_for_function(f"document.getElementById('explorer-count').textContent.startsWith('{len(deciding)} ')")
    unlabelled = "[...document.querySelectorAll('select, input')].filter((e) => !e.labels.length).map((e) => e.outerHTML)"
    assert page.evaluate(unlabelled) == []
    assert page.eval_on_selector_all("#explorer svg[role=img]", "all => all.every((e) => e.getAttribute('aria-label').length > 20)")


def test_explorer_opens_the_provenance_of_a_run(visit, shipped):
    row = shipped[shipped["seed"] >= explorer.PILOT].iloc[0]
    page = visit("explorer", f"#run={row['run_id']}")
    text = page.text_content("#explorer-provenance")
    for fact in (row["run_id"], row["data_fingerprint"], row["device"], row["torch_version"], row["date"], f"{100 * row['test_accuracy']:.2f} %"):
        assert fact in text
    page.locator("#explorer-run").press("End")
    chosen = page.input_value("#explorer-run")
    assert chosen != row["run_id"] and chosen in page.text_content("#explorer-provenance") and page.url.endswith(f"#run={chosen}")


def test_explorer_shows_the_runs_behind_a_figure(visit, shipped):
    deciding = shipped[(shipped["seed"] < explorer.PILOT) & (shipped["dataset"] == "digits")]
    slow, fast = (deciding[(deciding["optimizer"] == "sgd") & (deciding["lr"] == lr) & (deciding["epochs"] == 60) & (deciding["batch_size"] == 16)] for lr in (0.003, 0.03))
    slow = slow[slow["arch"] == "resnet9"]
    rows = pd.concat([slow[slow["precision"] == "fp32"], fast])
    page = visit("explorer", f"#recipes={','.join(plots.recipe_keys(rows))}")
    assert page.text_content("#explorer-count").startswith(f"{len(rows)} of {len(shipped)} runs, 2 recipes")
    assert page.input_value("select[name=colour]") == "lr"
    page.click("#explorer-only button")
    page.wait_for_function(f"!document.getElementById('explorer-count').textContent.startsWith('{len(rows)} ')")
    assert page.is_hidden("#explorer-only") and "#" not in page.url
    some = rows[rows["seed"] < 2]
    page = visit("explorer", f"#recipes={','.join(plots.recipe_keys(some))}&seeds=0,1")
    assert page.text_content("#explorer-count").startswith(f"{len(some)} of ")


def test_explorer_shows_each_data_set_by_a_single_choice(visit, shipped):
    """Also after a figure's or a run's address, and back again: an option that was greyed must not empty the choice."""
    for anchor in ("", f"#recipes={plots.recipe_keys(shipped[shipped['optimizer'] == 'adam'])[0]}&seeds=0", f"#run={shipped['run_id'].iloc[0]}"):
        page = visit("explorer", anchor)
        if "recipes" in anchor:
            page.click("#explorer-only button")
            page.wait_for_selector("#explorer-only", state="hidden")
        names = page.eval_on_selector_all("select[name=data] option", "all => all.map((o) => o.value)")
        for name in [*names, names[0]]:
            page.select_option("select[name=data]", name)
            assert not page.text_content("#explorer-count").startswith("0 "), (anchor, name)


def test_recipes_of_one_data_set_have_names_of_their_own(visit):
    page = visit("explorer")
    for name in ("network", "epochs", "batch_size", "precision"):
        page.select_option(f"select[name={name}]", "")
    names = page.eval_on_selector_all("#explorer-recipes th", "all => all.map((e) => e.textContent)")
    assert len(names) == len(set(names)) > 40


@pytest.mark.parametrize(
    "optimizer, lr, weight_decay, batch_size, train_size, epochs",
    [
        ("sgd", 0.003, 0.0, 16, 300, 60),  # 300/16 leaves a short batch
        ("sgd", 0.01, 0.01, 128, 40000, 300),
        ("momentum", 0.001, 0.0, 7, 1000, 3),
        ("adam", 0.0125, 0.0, 32, 4000, 60),
        ("adamw", 1e-5, 0.05, 256, 50000, 5000),
        ("muon", 0.5, 1.0, 2, 2, 1),
    ],
)
def test_calculator_agrees_with_the_package(visit, optimizer, lr, weight_decay, batch_size, train_size, epochs):
    recipe = dict(lr=lr, weight_decay=weight_decay, batch_size=batch_size, train_size=train_size, epochs=epochs)
    run = preset("digits").replace(optimizer=optimizer, **recipe)
    page = visit("calculator")
    page.select_option("select[name=optimizer]", optimizer)
    for name, value in recipe.items():
        page.fill(f"input[name={name}]", repr(value))
    clocks = run_clocks(run)
    for name in ("t_sgd", "t_l2", "t_adapt"):
        assert float(page.get_attribute(f"#calculator-{name}", "data-value")) == pytest.approx(getattr(clocks, name), rel=1e-9)
        assert float(page.text_content(f"#calculator-{name}")) == pytest.approx(getattr(clocks, name), rel=0.005)
    assert page.get_attribute(".calculator-driving dd", "id") == f"calculator-{active_clock(run)}"
    assert page.text_content("#calculator-words").startswith(f"{clocks.steps:,} steps.")


def test_calculator_names_the_nearest_recipe_with_its_measured_spread(visit, shipped):
    page = visit("calculator")
    measured = explorer.calculator_data(shipped)["recipes"]
    started = measured[int(page.input_value("select[name=start]"))]
    assert f"spread by {started['spread']:.1f} percentage points" in page.text_content("#calculator-words") and started["arch"] == "resnet9"
    for i, recipe in enumerate(measured):
        page.select_option("select[name=start]", str(i))
        words = page.text_content("#calculator-words")
        assert "the same" in words and f"spread by {recipe['spread']:.1f} percentage points" in words
    number, rows = next((n, r) for n, r in shipped.groupby(explorer.RECIPE) if r["sigma_w"].nunique() > 1 and r["seed"].min() < explorer.PILOT)
    estimate = metrics.spread(rows[rows["seed"] < explorer.PILOT])
    assert any(m["spread"] == explorer.short(estimate.value) and m["n"] == estimate.n for m in measured)


def test_calculator_says_what_is_wrong_and_recovers(visit):
    page = visit("calculator")
    before = page.text_content("#calculator-words")
    page.fill("input[name=batch_size]", "100000")
    assert "more images than there are" in page.text_content("#calculator-words")
    assert page.text_content("#calculator-t_sgd") == "–"
    page.fill("input[name=lr]", "-1")
    assert "Learning rate" in page.text_content("#calculator-words")
    page.select_option("select[name=start]", "1")
    assert page.text_content("#calculator-words") != before and page.text_content("#calculator-t_sgd") != "–"


def test_calculator_slider_by_keyboard(visit):
    page = visit("calculator")
    before = float(page.input_value("input[name=lr]"))
    page.focus("input[data-for=lr]")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    after = float(page.input_value("input[name=lr]"))
    assert after > before and page.get_attribute("input[data-for=lr]", "aria-valuetext") == page.input_value("input[name=lr]")
    page.focus("input[data-for=weight_decay]")
    page.keyboard.press("Home")
    assert page.input_value("input[name=weight_decay]") == "0"
