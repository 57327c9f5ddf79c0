"""Verdicts on tables made to deserve them, and the ledger itself."""

import numpy as np
import pandas as pd
import pytest
import yaml

from initmem import claims, report
from initmem.config import InitmemError, grid, preset
from initmem.store import book_dir

SCALES = np.array([0.1, 1.0, 2.5])


def table(accuracy, slope, optimizer="sgd", seeds=5, interpolates=True, noise=0.001):
    """Runs whose accuracies over SCALES are given and whose final norm is W_0 to the power `slope`."""
    rng, rows = np.random.default_rng(0), []
    for run in grid(preset("digits").replace(optimizer=optimizer), seed=range(seeds), sigma_w=SCALES):
        value = accuracy[list(SCALES).index(run.sigma_w)] + rng.normal(0, noise)
        rows.append(
            dict(run.model_dump(), test_accuracy=value, last_test_accuracy=value, status="finished")
            | dict(norm=np.array([run.sigma_w, 3 * run.sigma_w**slope]), train_accuracy=np.array([1.0 if interpolates else 0.9]))
        )
    return pd.DataFrame(rows)


REMEMBERS = claims.claim("sgd-remembers")


@pytest.mark.parametrize(("results", "outcome", "says"), [
    (table([0.95, 0.9, 0.8], 1), "reproduced", "all 3 conditions are met, over 5 seeds"),
    (table([0.95, 0.9, 0.8], 1, seeds=2), "partly", "2 of the 3 seeds"),
    (table([0.95, 0.9, 0.8], 1, seeds=1), "partly", "1 of the 3 seeds"),
    (table([0.95, 0.9, 0.8], 0), "partly", "2 of 3 conditions"),
    (table([0.95, 0.9, 0.8], 1, interpolates=False), "partly", "2 of 3 conditions"),
    (table([0.95, 0.95, 0.94], 1), "not", "the spread over σ_w exceeds 5 pp"),
    (table([0.95, 0.92, 0.90], 1, noise=0.02), "partly", "conditions"),  # 5 pp lies inside the interval
    (table([0.95, 0.9, 0.8], 1)[lambda t: t["sigma_w"] == 1.0], "untested", "at least two values"),
    (table([0.95, 0.9, 0.8], 1, optimizer="adam"), "untested", "no runs of the optimizers"),
])  # fmt: skip
def test_verdicts(results, outcome, says):
    verdict = REMEMBERS.verdict(results)
    assert verdict.outcome == outcome and says in verdict.reason


def test_seeds_left_out_and_diverged_runs_are_said_and_cost_the_full_verdict():
    whole = table([0.95, 0.9, 0.8], 1)
    lacking = whole[~((whole["seed"] == 4) & (whole["sigma_w"] == 1.0))]
    verdict = REMEMBERS.verdict(lacking)
    assert verdict.outcome == "partly" and "1 seeds lack a run and are left out, 0 runs diverged" in verdict.reason
    diverged = whole.assign(status=["diverged"] + ["finished"] * (len(whole) - 1))
    assert REMEMBERS.verdict(diverged).outcome == "partly" and "1 runs diverged" in REMEMBERS.verdict(diverged).reason


def test_the_adaptive_claim_compares_with_sgd():
    sgd = table([0.95, 0.9, 0.8], 1)
    level = [table([0.95, 0.951, 0.95], 0, optimizer=name) for name in ("adam", "adamw", "muon")]
    claim = claims.claim("adaptive-forgets")
    assert claim.verdict(pd.concat([sgd, *level])).outcome == "reproduced"
    assert claim.verdict(pd.concat([sgd, level[0]])).reason == "2 of the rule's 6 conditions could be tested"
    steep = [table([0.95, 0.9, 0.8], 0, optimizer=name) for name in ("adam", "adamw", "muon")]
    assert claim.verdict(pd.concat([sgd, *steep])).outcome == "not"


def test_a_condition_is_judged_by_its_whole_interval():
    bound = claims.Condition(metric="spread", optimizer="sgd", at_most=5.0, says="")
    judge = lambda low, value, high, n=5: bound.judge(claims.Estimate(value, low, high, n))  # noqa: E731
    assert judge(1, 2, 4) == "met" and judge(6, 7, 8) == "violated" and judge(4, 4.5, 6) == "open"
    assert judge(np.nan, 4.0, np.nan, n=1) == "met"
    assert bound.model_copy(update=dict(at_most=None, at_least=3.0)).judge(claims.Estimate(4, 3.5, 5, 5)) == "met"


def test_the_ledger_lists_the_papers_seven_claims_and_its_figures():
    ledger = claims.ledger()
    assert list(ledger.claims) == [
        "sgd-remembers", "adaptive-forgets", "time-is-not-enough", "l2-erases", "batch-slows", "depth-breaks", "clocks-order"
    ]  # fmt: skip
    assert ledger.claims["sgd-remembers"].paper.spread_pp == {"sgd": 26.5}
    assert ledger.claims["adaptive-forgets"].paper.spread_pp["muon"] == 4.0
    for claim in ledger.claims.values():
        assert bool(claim.chapter) == bool(claim.conditions)
        assert not claim.chapter or (book_dir() / f"{claim.chapter}.md").exists()
        assert all((c.at_least is None) != (c.at_most is None) for c in claim.conditions)


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
    for name in claims.testable():
        for scale in ("digits", "laptop", "paper"):
            runs = claims.claim(name).runs(preset=scale)
            assert {(run.dataset, run.width, run.train_size) for run in runs} == {
                (p.dataset, p.width, p.train_size) for p in [preset(scale)]
            }


def test_pages_escape_what_they_show():
    card = report.cards(REMEMBERS, {"<b>": table([0.95, 0.9, 0.8], 1)})
    assert "<b>" not in card and "&lt;b&gt;" in card and "initmem-reproduced" in card
