"""Verdicts on tables made to deserve them, and the ledger itself."""

import io
import re
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml

import initmem
from initmem import chapters, claims, metrics, plots, report, store
from initmem.clocks import active_clock
from initmem.config import InitmemError, grid, preset
from initmem.metrics import Estimate
from initmem.store import book_dir

SCALES = np.array([0.1, 1.0, 2.5])


def table(accuracy, slope, optimizer="sgd", seeds=5, interpolates=True, noise=0.001, base=None):
    """Runs whose accuracies over SCALES are given and whose final norm is W_0 to the power `slope`."""
    rng, rows = np.random.default_rng(0), []
    base = base or claims.claim("adaptive-forgets").recipe(optimizers=[optimizer])[optimizer]
    for run in grid(base, seed=range(seeds), sigma_w=SCALES):
        value = accuracy[list(SCALES).index(run.sigma_w)] + rng.normal(0, noise)
        rows.append(
            dict(run.model_dump(), run_id=run.run_id("x"), test_accuracy=value, last_test_accuracy=value, status="finished")
            | dict(norm=np.array([run.sigma_w, 3 * run.sigma_w**slope]), train_accuracy=np.array([1.0 if interpolates else 0.9]))
        )
    return pd.DataFrame(rows)


REMEMBERS = claims.claim("sgd-remembers")


def judge(claim, results):
    return claim.verdict(claim.split(results))


def judge(claim, results):
    return claim.verdict(claim.split(results))


@pytest.mark.parametrize(("results", "outcome", "says"), [
    (table([0.95, 0.9, 0.8], 1), "reproduced", "all 3 conditions are met, over 5 seeds"),
    (table([0.95, 0.9, 0.8], 1, seeds=2), "partly", "2 of the 3 seeds"),
    (table([0.95, 0.9, 0.8], 1, seeds=1), "partly", "1 of the 3 seeds"),
    (table([0.95, 0.9, 0.8], 0), "partly", "of 3 conditions 2 are met, 1 is violated, over 5 seeds"),
    (table([0.95, 0.9, 0.8], 1, interpolates=False), "partly", "15 of 15 networks never came to 99.5 %"),
    (table([0.95, 0.95, 0.94], 1), "not", "the core condition fails, which is that the spread over σ_w exceeds 5 pp"),
    (table([0.95, 0.92, 0.90], 1, noise=0.02), "partly", "conditions"),  # 5 pp lies inside the interval
    (table([0.95, 0.9, 0.8], 1)[lambda t: t["sigma_w"] == 1.0], "untested", "at least two values"),
    (table([0.95, 0.9, 0.8], 1, optimizer="adam"), "untested", "no runs yet"),
])  # fmt: skip
def test_verdicts(results, outcome, says):
    verdict = judge(REMEMBERS, results)
    assert verdict.outcome == outcome and says in verdict.reason


def test_seeds_left_out_and_diverged_runs_are_said_and_cost_the_full_verdict():
    whole = table([0.95, 0.9, 0.8], 1)
    lacking = whole[~((whole["seed"] == 4) & (whole["sigma_w"] == 1.0))]
    verdict = judge(REMEMBERS, lacking)
    assert verdict.outcome == "partly" and "1 seed lacks a run, left out here; runs diverged: 0" in verdict.reason
    diverged = whole.assign(status=["diverged"] + ["finished"] * (len(whole) - 1))
    assert judge(REMEMBERS, diverged).outcome == "partly" and "runs diverged: 1" in judge(REMEMBERS, diverged).reason
    failed = whole.assign(status=["failed"] + ["finished"] * (len(whole) - 1))
    assert judge(REMEMBERS, failed).outcome == "partly" and "1 seed lacks a run" in judge(REMEMBERS, failed).reason


def test_missing_runs_of_the_grid_cost_the_full_verdict():
    results, cells = table([0.95, 0.9, 0.8], 1), REMEMBERS.split(table([0.95, 0.9, 0.8], 1))
    grid_of_three = [run for run in REMEMBERS.runs(preset="digits", sigma_w=[*SCALES], seeds=5) if run.optimizer == "sgd"]
    assert REMEMBERS.verdict(cells, grid_of_three).outcome == "reproduced" and len(grid_of_three) == len(results)
    verdict = REMEMBERS.verdict(cells, REMEMBERS.runs(preset="digits"))
    assert verdict.outcome == "partly" and "55 of the 70 runs of these recipes are missing" in verdict.reason


def test_shares_of_networks_are_counts_without_an_interval():
    results = table([0.95, 0.9, 0.8], 1)
    results.at[0, "train_accuracy"] = np.array([0.9])
    line = judge(REMEMBERS, results).lines[1]
    assert line.judged == "violated" and f"{line.estimate:.2f}" == "0.93 (n = 5, no interval)"


def test_the_adaptive_claim_compares_with_sgd():
    sgd = table([0.95, 0.9, 0.8], 1)
    level = [table([0.95, 0.951, 0.95], 0, optimizer=name) for name in ("adam", "adamw", "muon")]
    claim = claims.claim("adaptive-forgets")
    assert judge(claim, pd.concat([sgd, *level])).outcome == "reproduced"
    assert judge(claim, pd.concat([sgd, level[0]])).reason == "2 of the rule's 6 conditions could be tested: 2 are met, over 5 seeds"
    steep = [table([0.95, 0.9, 0.8], 0, optimizer=name) for name in ("adam", "adamw", "muon")]
    assert judge(claim, pd.concat([sgd, *steep])).outcome == "not"
    lacking = judge(claim, pd.concat([sgd, *level[1:]]))
    assert lacking.outcome == "untested" and "the core condition" in lacking.reason


def test_a_condition_is_judged_by_its_whole_interval():
    bound = claims.Condition(metric="spread", of="sgd", at_most=5.0, says="")
    judge = lambda low, value, high, n=5: bound.judge(Estimate(value, low, high, n))  # noqa: E731
    assert judge(1, 2, 4) == "met" and judge(6, 7, 8) == "violated" and judge(4, 4.5, 6) == "open"
    assert judge(np.nan, 4.0, np.nan, n=1) == "met"
    assert bound.model_copy(update=dict(at_most=None, at_least=3.0)).judge(Estimate(4, 3.5, 5, 5)) == "met"


def test_the_ledger_lists_the_papers_seven_claims_and_its_figures():
    ledger = claims.ledger()
    assert [name for name, claim in ledger.claims.items() if not claim.ours] == [
        "sgd-remembers", "adaptive-forgets", "time-is-not-enough", "l2-erases", "batch-slows", "depth-breaks", "clocks-order"
    ]  # fmt: skip
    assert ledger.claims["sgd-remembers"].paper.spread_pp == {"sgd": 26.5}
    assert ledger.claims["adaptive-forgets"].paper.spread_pp["muon"] == 4.0
    for claim in ledger.claims.values():
        assert (book_dir() / f"{claim.chapter}.md").exists()
        assert claim.conditions and all((c.at_least is None) != (c.at_most is None) for c in claim.conditions)
        recipe = claim.recipe(preset="digits")
        assert all(set(c.cells(list(recipe))) <= set(recipe) for c in claim.conditions)
        assert set(claim.live.cells or []) <= set(recipe)


def test_a_fault_in_the_ledger_is_named(monkeypatch, tmp_path):
    content = yaml.safe_load((book_dir() / "claims.yml").read_text(encoding="utf-8"))
    content["claims"]["sgd-remembers"]["conditions"][0]["metric"] = "spred"
    (tmp_path / "claims.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.setattr(claims, "book_dir", lambda: tmp_path)
    claims.ledger.cache_clear()
    with pytest.raises(InitmemError, match="spred"):
        claims.ledger()
    monkeypatch.undo()
    claims.ledger.cache_clear()


def test_parameters_change_the_optimizers_under_test_alone():
    recipe = claims.claim("adaptive-forgets").recipe(preset="digits", lr=0.5, epochs=7)
    assert {run.lr for name, run in recipe.items() if name != "sgd"} == {0.5}
    assert recipe["sgd"].lr != 0.5 and {run.epochs for run in recipe.values()} == {7}
    assert list(REMEMBERS.recipe(optimizers=["adam"])) == ["adam", "momentum"]


def test_presets_are_never_mixed():
    """Every row that a scoreboard's cell rests on is of that cell's preset."""
    for name in claims.ledger().claims:
        for scale in ("digits", "laptop", "paper"):
            runs = claims.claim(name).runs(preset=scale)
            assert {run.train_size for run in runs} == {preset(scale).train_size}
            assert {run.dataset for run in runs} == {preset(scale).dataset if name != "travels" else "fashion_mnist"}


def test_pages_escape_what_they_show():
    card = report.cards(REMEMBERS, {"<b>": REMEMBERS.split(table([0.95, 0.9, 0.8], 1))})
    assert "<b>" not in card and "&lt;b&gt;" in card and "initmem-reproduced" in card


TIME = claims.claim("time-is-not-enough")


def test_cells_multiply_the_recipe_and_take_the_readers_parameters_first():
    recipe = TIME.recipe(preset="digits")
    assert [run.epochs for run in recipe.values()] == [60, 240, 960] and {run.lr for run in recipe.values()} == {0.003}
    assert [run.epochs for run in TIME.recipe(epochs=2, lr=0.5).values()] == [2, 8, 32]
    batches = claims.claim("batch-slows").recipe(preset="digits", lr=0.1)
    clocks = [initmem.run_clocks(run).t_sgd for name, run in batches.items() if "equal" in name or name == "b × 1"]
    assert clocks == pytest.approx([clocks[0]] * 5, rel=0.15), "a short last batch is dropped, so nearly"
    assert {run.optimizer for run in TIME.recipe(optimizers=["adam"]).values()} == {"adam"}
    with pytest.raises(InitmemError, match="give one optimizer"):
        TIME.recipe(optimizers=["adam", "sgd"])
    with pytest.raises(InitmemError, match="leave it out"):
        claims.claim("depth-breaks").recipe(optimizers=["adam"])
    with pytest.raises(InitmemError, match="weight_decay = 0.1 does not fit 'l2-erases'"):
        claims.claim("l2-erases").recipe(weight_decay=0.1)


def test_rows_find_their_cells_and_shared_ones_serve_several_claims():
    long, short = TIME.recipe()["16× epochs"], TIME.recipe()["1× epochs"]
    results = pd.concat([table([0.95, 0.9, 0.8], 1, base=base) for base in (long, short)])
    cells = TIME.split(results)
    assert list(cells) == ["1× epochs", "16× epochs"] and set(cells["16× epochs"]["epochs"]) == {long.epochs}
    assert list(REMEMBERS.split(results)) == ["sgd"]


@pytest.mark.parametrize(("late", "outcome"), [([0.95, 0.9, 0.8], "reproduced"), ([0.95, 0.9, 0.85], "partly"), ([0.95, 0.95, 0.93], "not")])
def test_time_is_judged_by_what_outlives_it(late, outcome):
    parts = [table(late if name == "16× epochs" else [0.95, 0.9, 0.8], 1, base=base) for name, base in TIME.recipe().items()]
    assert judge(TIME, pd.concat(parts)).outcome == outcome


@pytest.mark.parametrize(("growth", "equal", "outcome"), [(0.03, 0.0, "reproduced"), (0.03, 0.03, "partly"), (0.0, 0.0, "not")])
def test_batches_are_judged_by_the_trend(growth, equal, outcome):
    claim, parts = claims.claim("batch-slows"), []
    for name, base in claim.recipe().items():
        doublings = np.log2(base.batch_size / 4)
        spread = 0.05 + (equal if "equal" in name else growth) * doublings
        spread = 0.05 + growth * 2 if name == "b × 1" else spread + 0.05 * ("equal" in name)
        parts.append(table([0.95, 0.95 - spread / 2, 0.95 - spread], 1, base=base))
    assert judge(claim, pd.concat(parts)).outcome == outcome


def test_the_clocks_need_several_recipes_and_order_them():
    claim, parts = claims.claim("clocks-order"), []
    assert judge(claim, table([0.95, 0.9, 0.8], 1)).outcome == "untested"
    for base in claim.recipe().values():
        clock = getattr(initmem.run_clocks(base), active_clock(base))
        spread = 0.2 - 0.02 * np.log10(clock)
        parts.append(table([0.95, 0.9, 0.95 - spread], 1, base=base, noise=1e-6))
    verdict = judge(claim, pd.concat(parts))
    assert verdict.outcome == "reproduced" and verdict.lines[0].estimate.value == pytest.approx(-1, abs=0.01)
    begun = parts[-1][parts[-1]["sigma_w"] == parts[-1]["sigma_w"].min()]  # a sweep that has come to one scale of its last recipe
    assert judge(claim, pd.concat([*parts[:-1], begun])) == judge(claim, pd.concat(parts[:-1])) != verdict


def test_depth_is_judged_by_who_fits_at_the_largest_scale():
    claim = claims.claim("depth-breaks")
    parts = [
        table([0.95, 0.9, 0.8], 1, base=base, interpolates=base.arch == "resnet9" or base.optimizer == "adam")
        for base in claim.recipe().values()
    ]
    assert judge(claim, pd.concat(parts)).outcome == "reproduced"
    parts = [table([0.95, 0.9, 0.8], 1, base=base) for base in claim.recipe().values()]
    assert judge(claim, pd.concat(parts)).outcome == "not"


def test_a_rerun_says_what_changed():
    base = REMEMBERS.recipe()["sgd"]
    shipped = {"sgd": table([0.95, 0.9, 0.8], 1, base=base, noise=1e-9)}
    own = {"sgd": table([0.95, 0.94, 0.9], 1, base=base.replace(lr=base.lr * 10), noise=1e-9)}
    card = report.cards(REMEMBERS, {"digits, your parameters (5 seeds)": own, "digits, shipped (5 seeds)": shipped})
    assert "SGD: the spread falls from 15.0 to 5.0 pp; T_SGD is 100 times as large" in card
    assert "What your parameters changed" not in report.cards(REMEMBERS, {"digits (5 seeds)": shipped})


def test_a_card_shows_on_which_side_of_its_bound_a_number_lies():
    estimate = metrics.Estimate(1.2, 0.4, 1.9967, 5)
    assert report._beside(estimate, 2.0) == "1.200 [0.400, 1.997] (n = 5)"
    assert report._beside(estimate, 3.0) == "1.20 [0.40, 2.00] (n = 5)"
    assert report._beside(metrics.Estimate(1.0, 1.0, 1.0, 5), 1.0) == "1.00 [1.00, 1.00] (n = 5)", "that one is the bound"


def test_two_digits():
    values = {944.0: "940", 1563: "1,600", 0.0: "0", 7.3e-4: "0.00073", 100: "100", 0.0234: "0.023", 2.01: "2", 9.4e-7: "9.4e-07"}
    assert {value: report.two_digits(value) for value in values} == values


def test_colours_follow_the_optimizer_where_cells_differ_in_it():
    base = REMEMBERS.recipe()["sgd"]
    cells = {f"clothes, {name}": table([0.9, 0.85, 0.8], 1, base=base.replace(optimizer=name)) for name in ("sgd", "adam")}
    assert plots._looks(cells) == {f"clothes, {name}": plots._look(name) for name in ("sgd", "adam")}
    steps = plots._looks({"a": cells["clothes, sgd"], "b": cells["clothes, sgd"]})
    assert steps["a"] != steps["b"]


def test_a_title_names_data_that_are_not_the_presets_own():
    base = REMEMBERS.recipe()["sgd"]
    rows = table([0.9, 0.85, 0.8], 1, base=base)
    assert chapters.place("digits", {"sgd": rows}) == "digits"
    assert chapters.place("digits", {"sgd": rows.assign(dataset="fashion_mnist")}) == "digits, on Fashion-MNIST"


def test_a_picture_shows_numbers_in_full_and_offers_its_rows():
    base = REMEMBERS.recipe()["sgd"]
    cells = {(lr, decay): table([0.95, 0.9, 0.8], 1, base=base.replace(lr=lr, weight_decay=decay)) for lr, decay in [(0.0003, 0.001), (0.0003, 0.01), (0.003, 0.001), (0.003, 0.01)]}
    made = dict(wall_seconds=1.0, data_source="x", data_fingerprint="x", device="x", git_revision="", date="x", precision_used="x", torch_version="x")
    cells = {f"{i}": rows.assign(**made) for i, rows in enumerate(cells.values())}
    picture = plots.spread_map(cells, "map", "over σ_w")
    assert ">0.0003<" in picture.svg and ">0.003<" in picture.svg, "rounding is for coordinates"
    assert "σ<sub>w</sub>" in picture._repr_html_()
    rows = pd.read_csv(io.StringIO(picture.csv))
    assert len(rows) == 3 * len(cells) and set(rows["runs"]) == {5}


def test_a_picture_says_each_style_once_and_refers_only_to_itself():
    claim = claims.claim("sgd-remembers")
    picture = plots.memory_curves({"digits": claim.shipped("digits")}, "memory", "A caption.")
    seen: set[str] = set()
    for svg in (picture.svg, picture.narrow):
        root = ElementTree.fromstring(svg)
        ids = {part.get("id") for part in root.iter()} - {None}
        referred = {found for part in root.iter() for value in part.attrib.values() for found in re.findall(r"(?:^|url\()#([^)]+)", value)}
        referred |= set(re.findall(r"url\(#([^)]+)", svg))
        assert ids == referred | {root.get("id")}, "no dead reference, no idle id"
        assert not ids & seen, "pictures share a page"
        seen |= ids
        rules = dict(re.findall(rf"#{root.get('id')} \.(\w+) {{(.*?)}}", svg))
        assert {part.get("class") for part in root.iter()} - {None} == set(rules) and len(set(rules.values())) == len(rules)
        assert any("fill-opacity: 0.18" in rule for rule in rules.values()), "styles keep their digits"
        places = [number for part in root.iter() for number in re.findall(r"\d+\.(\d+)", part.get("d", "") + part.get("x", ""))]
        assert places and max(map(len, places)) == 1


def test_a_cell_has_one_colour_in_every_panel():
    cells = {name: rows for name, rows in claims.claim("depth-breaks").shipped("digits").items() if "SGD" in name}
    fewer = {name: rows for name, rows in cells.items() if "110" not in name}
    picture = plots.memory_curves({"a": cells, "b": fewer}, "depths", "A caption.")
    colours = dict(re.findall(r"\.(s\d+) {[^}]*stroke: ([^;]*); stroke-width: 2[;}]", picture.svg))
    lines = Counter(colours[name] for name in re.findall(r'<path [^>]*class="(\w+)"', picture.svg) if name in colours)
    assert list(lines.values()) == [4, 4, 2], "a curve and its place in the legend, in two panels or in one"


@pytest.mark.parametrize("name", list(claims.ledger().claims))
def test_the_midst_of_a_sweep_has_a_verdict(name):
    """Whatever rows happen to be at hand: no verdict raises, and none is full while runs are missing."""
    claim, rng = claims.claim(name), np.random.default_rng(0)
    rows = claims.at_hand(claim, "digits", store.current(store.read(cached=False)))
    assert len(rows)
    for share in (0.005, 0.02, 0.05, 0.1, 0.3, 0.8):
        some = rows[rng.random(len(rows)) < share]
        verdict = claim.verdict(claim.split(some))
        assert verdict.outcome != "reproduced" and str(verdict) and verdict.reason
    one_scale_behind = rows[(rows["sigma_w"] == 0.1) | (rng.random(len(rows)) < 0.5)]
    assert claim.verdict(claim.split(one_scale_behind)).reason


def test_an_empty_store_answers_nothing_and_breaks_nothing(own_store):
    nothing = initmem.read()
    assert claims.at_hand(REMEMBERS, "digits", nothing).empty and REMEMBERS.split(nothing) == {}
    assert {verdict.outcome for verdict in claims.scoreboard(nothing).values()} == {"untested"}
