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
    """A row an optimizer: spread with interval, at the last checkpoint, the noise floor, radial memory, interpolation."""
    rows = []
    for name, mine in by_optimizer(results).items():
        several = mine["sigma_w"].nunique() > 1
        floor, p = metrics.noise_floor(mine) if several else (np.nan, np.nan)
        spread = metrics.spread(mine) if several else None
        rows.append(
            {
                "optimizer": LABELS[name],
                "spread (pp)": _bracket(spread, ".1f") if several else "needs two σ_w",
                "last epoch (pp)": f"{metrics.spread(mine, 'last_test_accuracy').value:.1f}" if several else "",
                "noise floor (pp)": f"{floor:.1f}" if np.isfinite(floor) else "–",
                "p": _p_words(p) if np.isfinite(p) else "–",
                "radial memory": _bracket(metrics.radial_memory(mine), ".2f") if several else "",
                "ever ≥ 99.5 %": f"{sum(_reached(mine))}/{len(mine)}",
                "seeds": mine["seed"].nunique(),
            }
        )
    return pd.DataFrame(rows)


def _bracket(estimate: metrics.Estimate, spec: str) -> str:
    value = f"{estimate.value:{spec}}"
    return f"{value} [{estimate.low:{spec}}, {estimate.high:{spec}}]" if estimate.n > 1 else value


def _p_words(p: float) -> str:
    return "≤ 0.00025" if p <= 1 / 4000 else f"{p:.2g}"


def _reached(results: pd.DataFrame) -> list[bool]:
    return [metrics.interpolation_epoch(curve) is not None for curve in results["train_accuracy"]]


def clock_table(recipes: dict[str, Run], regimes: Iterable[str] = PAPER_REGIMES) -> pd.DataFrame:
    """The three clocks of some runs, the driving one marked *, and the paper's regimes beside them."""
    rows = [{"recipe": LABELS.get(name, name), **_clock_columns(run_clocks(run), active_clock(run))} for name, run in recipes.items()]
    rows += [{"recipe": f"paper: {name}", **_clock_columns(paper_clocks(name), PAPER_REGIMES[name]["clock"])} for name in regimes]
    return pd.DataFrame(rows)


def _clock_columns(clocks: Clocks, driving: str) -> dict[str, str]:
    columns = {"T_SGD = Σ η²/b": "t_sgd", "T_L2 = λ Σ η": "t_l2", "T_adapt = Σ η": "t_adapt"}
    values = {title: f"{getattr(clocks, name):.2g}{' *' if name == driving else ''}" for title, name in columns.items()}
    return {"steps": f"{clocks.steps:,}", **values}


def text(claim: Claim, parameters: Parameters, results: pd.DataFrame) -> str:
    """The whole answer to `initmem reproduce`, for a terminal."""
    parts = [f"{claim.title} — preset {parameters.preset}\n{claim.statement}"]
    for name, rows in by_optimizer(results).items():
        table = metrics.table(rows)
        table = table if table["diverged"].any() else table.drop(columns=["diverged"])
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
    """The spread in running text, or why there is none."""
    return metrics.spread(results).words(".1f", " pp") if results["sigma_w"].nunique() > 1 else "nothing that one σ_w could show"


def floor_words(results: pd.DataFrame) -> str:
    """A sentence that holds the spread against what seeds alone would give."""
    if results["sigma_w"].nunique() < 2 or results["seed"].nunique() < 2:
        return "It takes at least two seeds and two σ_w to tell this from chance"
    floor, p = metrics.noise_floor(results)
    beyond = "more" if metrics.spread(results).value > floor else "no more"
    p = f"p {_p_words(p)}" if p <= 1 / 4000 else f"p = {_p_words(p)}"
    return f"That is {beyond} than seeds alone would give: {floor:.1f} pp is exceeded by 5 % of shuffles ({p})"


def slope_words(results: pd.DataFrame) -> str:
    """The radial memory in running text."""
    return metrics.radial_memory(results).words(".2f") if results["sigma_w"].nunique() > 1 else "undefined for one σ_w"


def interpolated_words(results: pd.DataFrame) -> str:
    """A sentence on how many runs fit their training data."""
    return f"{sum(_reached(results))} of {len(results)} networks reach 99.5 % training accuracy in some epoch"


def selected_words(results: pd.DataFrame) -> str:
    """The median epoch of the validation minimum, and the horizon."""
    return f"epoch {results['selected_epoch'].median():.0f} of {results['epochs'].iloc[0]}"


def grid_words(results: pd.DataFrame) -> str:
    """How many scales there are, and their ends."""
    scales = sorted(results["sigma_w"].unique())
    return f"{len(scales)} scales from {scales[0]:g} to {scales[-1]:g}" if len(scales) > 1 else f"a single scale, {scales[0]:g}"


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


def html_table(frame: pd.DataFrame, classes: str | None = None) -> Page:
    """A table for a page, without an index."""
    table = frame.to_html(index=False, border=0, float_format=lambda value: f"{value:.4g}", na_rep="–", classes=classes)
    return Page(table)


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
            detail = verdict.reason
            spread = [line for line in verdict.lines if line.condition.metric == "spread"]
            detail = f"spread {spread[0].estimate.words('.1f', ' pp')}" if spread else detail
            if not spread and verdict.lines:
                detail = f"{sum(line.judged == 'met' for line in verdict.lines)} of {len(claim.conditions)} conditions met"
            cells += (
                f'<td data-label="{preset}"><span class="initmem-{verdict.outcome}">{html.escape(verdict.title)}</span>'
                f"<small>{html.escape(detail)}</small></td>"
            )
        title = f'<a href="{claim.chapter}.html">{html.escape(claim.title)}</a>' if claim.chapter and pages else claim.title
        rows.append(
            f'<tr><th scope="row">{title}<small>{html.escape(claim.statement)}</small></th>'
            f'<td data-label="the paper">{html.escape(_paper_figure(claim))}</td>{cells}</tr>'
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ["claim", "the paper", *PRESETS])
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
