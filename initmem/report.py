"""Results in words: the same tables for the terminal, for machines and for the book's pages."""

import html
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from initmem import metrics, store
from initmem.claims import Claim, Parameters, Verdict, scoreboard
from initmem.clocks import PAPER_REGIMES, Clocks, active_clock, paper_clocks, run_clocks
from initmem.config import PRESETS, Run
from initmem.plots import LABELS, provenance


def by_optimizer(results: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each optimizer, in the order of the book."""
    return {name: rows for name in LABELS if len(rows := results[results["optimizer"] == name])}


def memory_table(results: pd.DataFrame) -> pd.DataFrame:
    """A row an optimizer: spread, what seeds alone would give, radial memory, share that interpolates."""
    rows = []
    for name, mine in by_optimizer(results).items():
        several = mine["sigma_w"].nunique() > 1
        floor, p = metrics.noise_floor(mine) if several else (np.nan, np.nan)
        rows.append(
            {
                "optimizer": LABELS[name],
                "spread (pp)": f"{metrics.spread(mine):.1f}" if several else "needs two σ_w",
                "last checkpoint (pp)": f"{metrics.spread(mine, 'last_test_accuracy').value:.1f}" if several else "",
                "seeds alone (pp)": f"{floor:.1f} (p = {p:.2g})" if np.isfinite(floor) else "needs two seeds",
                "radial memory": f"{metrics.radial_memory(mine):.2f}" if several else "",
                "interpolate": f"{100 * metrics.interpolated_share(mine).value:.0f} %",
                "diverged": int((mine["status"] == "diverged").sum()),
            }
        )
    return pd.DataFrame(rows)


def clock_table(recipes: dict[str, Run]) -> pd.DataFrame:
    """The three clocks of some runs, and the paper's regimes beside them."""
    rows = {LABELS.get(name, name): run_clocks(run) for name, run in recipes.items()}
    rows |= {f"paper: {name}": paper_clocks(name) for name in PAPER_REGIMES}
    return pd.DataFrame([{"recipe": name, **_clock_columns(clocks)} for name, clocks in rows.items()])


def _clock_columns(clocks: Clocks) -> dict[str, str]:
    return {
        "steps": f"{clocks.steps:,}",
        "T_SGD = Σ η²/b": f"{clocks.t_sgd:.2g}",
        "T_L2 = λ Σ η": f"{clocks.t_l2:.2g}",
        "T_adapt = Σ η": f"{clocks.t_adapt:.3g}",
    }


def text(claim: Claim, parameters: Parameters, results: pd.DataFrame) -> str:
    """The whole answer to `initmem reproduce`, for a terminal."""
    parts = [f"{claim.title} — preset {parameters.preset}\n{claim.statement}"]
    for name, rows in by_optimizer(results).items():
        table = metrics.table(rows).drop(columns=["diverged"])
        interval = [f"{low:.1f}–{high:.1f}" if np.isfinite(low) else "–" for low, high in zip(table["low"], table["high"])]
        table.insert(2, "95 %", interval)
        parts.append(f"{LABELS[name]}\n" + table.drop(columns=["low", "high"]).to_string(index=False, float_format="%.4g", na_rep="–"))
    parts.append("Memory\n" + memory_table(results).to_string(index=False))
    parts.append("Clocks\n" + clock_table(claim.recipe(parameters)).to_string(index=False))
    parts.append(f"The paper ({claim.paper.condition}): " + ", ".join(f"{LABELS[k]} {v:g} pp" for k, v in claim.paper.spread_pp.items()))
    parts.append(provenance(results))
    parts.append(str(claim.verdict(results)))
    return "\n\n".join(parts)


def as_dict(claim: Claim, parameters: Parameters, results: pd.DataFrame) -> dict[str, Any]:
    """The same answer for machines: numbers, intervals and the verdict; a missing number is null."""
    verdict = claim.verdict(results)
    tables = {name: metrics.table(rows) for name, rows in by_optimizer(results).items()}
    return _jsonable(
        {
            "claim": claim.id,
            "parameters": parameters.model_dump(),
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "conditions": [
                {"says": line.condition.says, "judged": line.judged, **line.estimate._asdict()} for line in verdict.lines
            ],
            "per_sigma_w": {name: table.to_dict("records") for name, table in tables.items()},
            "clocks": {name: vars(run_clocks(run)) for name, run in claim.recipe(parameters).items()},
            "paper": claim.paper.model_dump(),
            "provenance": provenance(results),
        }
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def scoreboard_text() -> str:
    """The ledger with verdicts, for a terminal."""
    verdicts = scoreboard(store.current(store.read()))
    rows = [
        {"claim": name, "the paper": _paper_figure(claim)} | {preset: verdicts[name, preset].title for preset in PRESETS}
        for name, claim in _claims(verdicts)
    ]
    return pd.DataFrame(rows).to_string(index=False)


def _claims(verdicts: dict[tuple[str, str], Verdict]) -> Iterable[tuple[str, Claim]]:
    return {name: verdict.claim for (name, _), verdict in verdicts.items()}.items()


def _paper_figure(claim: Claim) -> str:
    return ", ".join(f"{LABELS[k]} {v:g} pp" for k, v in claim.paper.spread_pp.items()) or claim.paper.condition


def spread_words(results: pd.DataFrame) -> str:
    """The spread with its interval and n, or why there is none."""
    return f"{metrics.spread(results):.1f} pp" if results["sigma_w"].nunique() > 1 else "nothing to measure: one σ_w"


def floor_words(results: pd.DataFrame) -> str:
    """A sentence that holds the spread against the noise floor."""
    if results["sigma_w"].nunique() < 2 or results["seed"].nunique() < 2:
        return "That takes at least two seeds and two σ_w to tell"
    floor, p = metrics.noise_floor(results)
    value = metrics.spread(results).value
    return f"{'No' if value > floor else 'It might'}: shuffling σ_w within each seed gives at most {floor:.1f} pp in 95 % of shuffles (p = {p:.2g})"


def slope_words(results: pd.DataFrame) -> str:
    """The radial memory with its interval and n."""
    return f"{metrics.radial_memory(results):.2f}" if results["sigma_w"].nunique() > 1 else "nothing to measure: one σ_w"


def interpolated_words(results: pd.DataFrame) -> str:
    """A sentence on how many runs fit their training data."""
    reached = sum(metrics.interpolation_epoch(curve) is not None for curve in results["train_accuracy"])
    return f"{reached} of {len(results)} networks reach 99.5 % training accuracy"


def clock_words(recipes: dict[str, Run], regime: str) -> str:
    """A sentence that holds the driving clock of the first recipe against the same clock of a regime of the paper."""
    run = next(iter(recipes.values()))
    name = active_clock(run)
    ours, theirs = getattr(run_clocks(run), name), getattr(paper_clocks(regime), name)
    label = {"t_sgd": "T_SGD", "t_l2": "T_L2", "t_adapt": "T_adapt"}[name]
    return f"{label} of {LABELS[run.optimizer]} is {ours:.2g} here and {theirs:.2g} in the paper"


def norm_factor(results: pd.DataFrame, epoch: int) -> str:
    """The ratio of the largest to the smallest seed-mean norm over σ_w at one epoch (0: initialization, -1: the last)."""
    norms = results.assign(norm=results["norm"].str[epoch]).groupby("sigma_w")["norm"].mean()
    return f"{norms.max() / norms.min():.2g}"


def each(groups: dict[str, pd.DataFrame], words: Callable[[pd.DataFrame], str]) -> str:
    """One phrase for several optimizers."""
    return "; ".join(f"{LABELS[name]} {words(rows)}" for name, rows in groups.items())


class Page(str):
    """A piece of HTML that displays itself in a notebook, with subscripts for symbols such as σ_w and T_SGD."""

    def _repr_html_(self) -> str:
        return re.sub(r"(σ|τ|T|‖W)_(\w+)", r"\1<sub>\2</sub>", self)


def html_table(frame: pd.DataFrame) -> Page:
    """A table for a page, without an index."""
    return Page(frame.to_html(index=False, border=0, float_format=lambda value: f"{value:.4g}", na_rep="–"))


def cards(claim: Claim, panels: dict[str, pd.DataFrame]) -> Page:
    """A verdict card for every panel: the outcome, the reason, each condition with what was measured."""
    return Page("".join(_card(claim.verdict(results), title) for title, results in panels.items()))


def _card(verdict: Verdict, title: str) -> str:
    lines = "".join(
        f"<li><strong>{line.judged}</strong>: {html.escape(line.condition.says)} — measured "
        f"{html.escape(format(line.estimate, '.2f'))}</li>"
        for line in verdict.lines
    )
    return (
        f'<div class="initmem-verdict initmem-{verdict.outcome}"><p class="initmem-heading">'
        f"{html.escape(verdict.title.capitalize())} on {html.escape(title)}</p>"
        f"<p>{html.escape(verdict.reason[0].upper() + verdict.reason[1:])}.</p><ul>{lines}</ul></div>"
    )


def scoreboard_page(pages: bool = True) -> Page:
    """The scoreboard of the front page: a row a claim, the paper's figure, a verdict a preset."""
    verdicts = scoreboard(store.current(store.read(cached=False)))
    rows = []
    for name, claim in _claims(verdicts):
        cells = ""
        for preset in PRESETS:
            verdict = verdicts[name, preset]
            detail = f"{verdict.lines[0].estimate:.2g}" if verdict.lines else verdict.reason
            spread = [line for line in verdict.lines if line.condition.metric == "spread"]
            detail = f"spread {spread[0].estimate:.1f} pp" if spread else detail
            if not spread and verdict.lines:
                detail = f"{sum(line.judged == 'met' for line in verdict.lines)} of {len(claim.conditions)} conditions met"
            cells += (
                f'<td><span class="initmem-{verdict.outcome}">{html.escape(verdict.title)}</span>'
                f"<small>{html.escape(detail)}</small></td>"
            )
        title = f'<a href="{claim.chapter}.html">{html.escape(claim.title)}</a>' if claim.chapter and pages else claim.title
        rows.append(
            f'<tr><th scope="row">{title}<small>{html.escape(claim.statement)}</small></th>'
            f"<td>{html.escape(_paper_figure(claim))}</td>{cells}</tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ["claim", "paper", *PRESETS])
    return Page(f'<table class="initmem-scoreboard"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>')


def pilot_table(results: pd.DataFrame) -> pd.DataFrame:
    """A row a pilot recipe: its clocks, and the worst over its runs of the best training accuracy."""
    rows = []
    for (dataset, optimizer, lr), mine in results.groupby(["dataset", "optimizer", "lr"]):
        clocks = run_clocks(Run(**mine.iloc[0][list(store.RUN_FIELDS)]))
        worst = min(float(np.max(curve)) for curve in mine["train_accuracy"])
        reached = sum(metrics.interpolation_epoch(curve) is not None for curve in mine["train_accuracy"])
        rows.append(
            {"data": dataset, "optimizer": LABELS[optimizer], "η": lr, "T_SGD": clocks.t_sgd, "T_adapt": clocks.t_adapt}
            | {"lowest training accuracy (%)": 100 * worst, "interpolate": f"{reached}/{len(mine)}"}
        )
    return pd.DataFrame(rows)


def parameter_table() -> pd.DataFrame:
    """What each chapter parameter is and may be, from the schema that checks it."""
    rows = []
    for name, schema in Parameters.model_json_schema()["properties"].items():
        kinds = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
        part = kinds[0].get("items", kinds[0])
        limits = [f"{sign} {part[key]:g}" for key, sign in _LIMITS.items() if key in part]
        kind = ("list of " if "items" in kinds[0] else "") + {"number": "number", "integer": "whole number"}.get(part["type"], "name")
        rows.append({"name": name, "type": " ".join([kind, *limits]), "meaning": schema["description"]})
    return pd.DataFrame(rows)


_LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
