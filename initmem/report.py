"""Results in words: the same tables for the terminal, for machines and for the book's pages."""

import html
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from initmem import metrics, store
from initmem.chapters import place, seeds_in
from initmem.claims import Claim, Parameters, Verdict, at_hand, scoreboard
from initmem.clocks import PAPER_REGIMES, Clocks, active_clock, paper_clocks, run_clocks
from initmem.config import PRESETS, Run
from initmem.plots import LABELS, Cells, label, provenance, subscripts


def memory_table(cells: Cells) -> pd.DataFrame:
    """A row a cell: spread with interval, at the last checkpoint, the noise floor, radial memory, interpolation."""
    rows = []
    for name, mine in cells.items():
        several = mine["sigma_w"].nunique() > 1
        floor, p = metrics.noise_floor(mine) if several else (np.nan, np.nan)
        rows.append(
            {
                "recipe": label(name),
                "spread (pp)": bracket(metrics.spread(mine), ".1f") if several else "needs two σ_w",
                "last epoch (pp)": bracket(metrics.spread(mine, "last_test_accuracy"), ".1f").split(" ")[0] if several else "",
                "noise floor (pp)": f"{floor:.1f}" if np.isfinite(floor) else "–",
                "p": f"{p:.2g}" if np.isfinite(p) else "–",
                "radial memory": bracket(metrics.radial_memory(mine), ".2f") if several else "",
                "ever ≥ 99.5 %": f"{sum(_reached(mine))}/{len(mine)}",
                "seeds": mine["seed"].nunique(),
            }
        )
    return pd.DataFrame(rows)


def two_digits(value: float) -> str:
    """A number to two significant digits, as people write it: 940 and not 9.4e+02."""
    return f"{float(f'{value:.2g}'):,.6g}"


def bracket(estimate: metrics.Estimate, spec: str) -> str:
    """A number and its interval in brackets, for a table."""
    value = f"{estimate.value:{spec}}" if estimate.n else "–"
    return f"{value} [{estimate.low:{spec}}, {estimate.high:{spec}}]" if estimate.n > 1 else value


def _reached(results: pd.DataFrame) -> list[bool]:
    return [metrics.interpolation_epoch(curve) is not None for curve in results["train_accuracy"]]


def clock_table(recipes: dict[str, Run], regimes: Iterable[str] = PAPER_REGIMES) -> pd.DataFrame:
    """The three clocks of some runs, the driving one marked *, and the paper's regimes beside them."""
    rows = [{"recipe": label(name), **_clock_columns(run_clocks(run), active_clock(run))} for name, run in recipes.items()]
    rows += [{"recipe": f"paper: {name}", **_clock_columns(paper_clocks(name), PAPER_REGIMES[name]["clock"])} for name in regimes]
    return pd.DataFrame(rows)


def _clock_columns(clocks: Clocks, driving: str) -> dict[str, str]:
    columns = {"T_SGD = Σ η²/b": "t_sgd", "T_L2 = λ Σ η": "t_l2", "T_adapt = Σ η": "t_adapt"}
    values = {title: f"{two_digits(getattr(clocks, name))}{' *' if name == driving else ''}" for title, name in columns.items()}
    return {"steps": f"{clocks.steps:,}", **values}


def text(claim: Claim, parameters: Parameters, results: pd.DataFrame) -> str:
    """The whole answer to `initmem reproduce`, for a terminal."""
    cells = claim.split(results, parameters)
    parts = [f"{claim.title} — preset {parameters.preset}\n{claim.statement}"]
    for name, rows in cells.items() if len(cells) <= 9 else []:
        table = metrics.table(rows)
        table = table if table["diverged"].any() else table.drop(columns=["diverged"])
        interval = [f"{low:.1f}–{high:.1f}" if np.isfinite(low) else "–" for low, high in zip(table["low"], table["high"])]
        table.insert(2, "95 %", interval)
        parts.append(f"{label(name)}\n" + table.drop(columns=["low", "high"]).to_string(index=False, float_format="%.4g", na_rep="–"))
    parts.append("Memory\n" + memory_table(cells).to_string(index=False))
    parts.append("Clocks\n" + clock_table({name: claim.recipe(parameters)[name] for name in cells}).to_string(index=False))
    parts.append(f"The paper ({claim.paper.condition})" + "".join(f"; {LABELS[k]} {v:g} pp" for k, v in claim.paper.spread_pp.items()))
    parts.append(provenance(results))
    parts.append(str(claim.verdict(cells)))
    return "\n\n".join(parts)


def as_dict(claim: Claim, parameters: Parameters, results: pd.DataFrame) -> dict[str, Any]:
    """The same answer for machines: numbers, intervals and the verdict; a missing number is null."""
    cells = claim.split(results, parameters)
    verdict = claim.verdict(cells)
    return _jsonable(
        {
            "claim": claim.id,
            "parameters": parameters.model_dump(),
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "conditions": [
                {"says": line.condition.says, "judged": line.judged, **line.estimate._asdict()} for line in verdict.lines
            ],
            "per_sigma_w": {name: metrics.table(rows).to_dict("records") for name, rows in cells.items()},
            "clocks": {name: vars(run_clocks(run)) for name, run in claim.recipe(parameters).items() if name in cells},
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


def outcomes_text(answers: Iterable[tuple[Claim, pd.DataFrame]], parameters: Parameters) -> str:
    """A row a claim with the paper's figure and the outcome, for a terminal."""
    rows = [
        {"claim": claim.id, "the paper": _paper_figure(claim), "here": claim.verdict(claim.split(results, parameters)).title}
        for claim, results in answers
    ]
    return pd.DataFrame(rows).to_string(index=False)


def _claims(verdicts: dict[tuple[str, str], Verdict]) -> Iterable[tuple[str, Claim]]:
    return {name: verdict.claim for (name, _), verdict in verdicts.items()}.items()


def _paper_figure(claim: Claim) -> str:
    return ", ".join(f"{LABELS[k]} {v:g} pp" for k, v in claim.paper.spread_pp.items()) or claim.paper.condition


def spread_words(results: pd.DataFrame, accuracy: str = "test_accuracy") -> str:
    """The spread in running text, or why there is none."""
    return metrics.spread(results, accuracy).words(".1f", " pp") if results["sigma_w"].nunique() > 1 else "nothing that one σ_w could show"


def last_spread_words(results: pd.DataFrame) -> str:
    """The spread of the last predictors in running text."""
    return spread_words(results, "last_test_accuracy")


def floor_words(results: pd.DataFrame) -> str:
    """A sentence that holds the spread against what seeds alone would give."""
    if results["sigma_w"].nunique() < 2 or results["seed"].nunique() < 2:
        return "It takes at least two seeds and two σ_w to tell this from chance"
    floor, p = metrics.noise_floor(results)
    if not np.isfinite(floor):
        return "Too few runs came to an end to tell this from chance"
    beyond = "more" if metrics.spread(results).value > floor else "no more"
    return f"The spread is {beyond} than seeds alone would give: 5 % of shuffles exceed {floor:.1f} pp, and a share p = {p:.2g} of them reach the real spread"


def slope_words(results: pd.DataFrame) -> str:
    """The radial memory in running text."""
    return metrics.radial_memory(results).words(".2f") if results["sigma_w"].nunique() > 1 else "undefined for one σ_w"


def interpolated_words(results: pd.DataFrame) -> str:
    """A sentence on how many runs fit their training data."""
    return f"{sum(_reached(results))} of {len(results)} networks reach 99.5 % training accuracy in some epoch"


def time_words(claim: Claim) -> str:
    """How long the live part takes, from what its shipped rows took: one core's minutes, whatever their preset's budget."""
    rows = at_hand(claim, "digits", store.current(store.read(cached=False)))
    live = set(claim.runs(preset="digits", live=True))
    longest: dict[Run, float] = {}  # a longer run holds the shorter ones
    for row in rows.to_dict("records"):
        if (run := Run(**{name: row[name] for name in store.RUN_FIELDS})) in live:
            longest[run.replace(epochs=1)] = max(row["wall_seconds"], longest.get(run.replace(epochs=1), 0.0))
    took = sum(longest.values())
    return f"about {max(1, round(took / 60))} minute{'s' * (took >= 90)} of one core" if took else "a few minutes"


def reading_words(chapter: str) -> str:
    """Minutes to read a chapter, at 200 words of its prose a minute."""
    text = (store.book_dir() / f"{chapter}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    return f"{max(1, round(len(prose.split()) / 200))} minutes"


def words_of(cells: Cells, name: str, words: Callable[[pd.DataFrame], str]) -> str:
    """A phrase for one cell, or that it was not run."""
    return words(cells[name]) if name in cells else "not run here"


def ratio_words(cells: Cells, name: str, reference: str) -> str:
    """The ratio of two cells' spreads in running text."""
    if not {name, reference} <= set(cells) or cells[name]["sigma_w"].nunique() < 2:
        return "not measured here"
    return metrics.spread_ratio(cells[name], cells[reference]).words(".2f")


def trend_words(cells: Cells) -> str:
    """By how much the spread grows with every doubling of the batch size."""
    if len(cells) < 2 or any(rows["sigma_w"].nunique() < 2 for rows in cells.values()):
        return "nothing that these runs could show"
    return metrics.trend(list(cells.values())).words(".1f", " pp")


def fit_words(results: pd.DataFrame) -> str:
    """How many runs fit their training data, short."""
    return f"{sum(_reached(results))} of {len(results)} networks fit"


def largest_words(results: pd.DataFrame) -> str:
    """How many runs at the largest scale fit their training data."""
    largest = results[results["sigma_w"] == results["sigma_w"].max()]
    best = largest["train_accuracy"].map(max).mean()
    average = " on average" if len(largest) > 1 else ""
    return f"{sum(_reached(largest))} of {len(largest)} fit (best epoch {100 * best:.1f} %{average})"


def tau_words(results: pd.DataFrame) -> str:
    """The median interpolation epoch at the smallest and the largest scale."""
    table = metrics.table(results)
    ends = [f"{epoch:.0f}" if np.isfinite(epoch) else "never" for epoch in table["τ_interp"].iloc[[0, -1]]]
    return f"{ends[0]} → {ends[1]}"


def turned_words(results: pd.DataFrame) -> str:
    """The median angle, over kernels and seeds, between a kernel and its initial self at the end: smallest → largest scale."""
    words = []
    for scale in (results["sigma_w"].min(), results["sigma_w"].max()):
        last = [np.asarray(row["layer_cosines"])[-len(row["layers"]) :] for _, row in results[results["sigma_w"] == scale].iterrows()]
        words.append(f"{np.degrees(np.arccos(np.clip(np.median(last), -1, 1))):.0f}°")
    return " → ".join(words)


def collapse_words(cells: Cells, power: int | None = None) -> str:
    """The share of variance that one curve explains, in running text."""
    if len(cells) < 3 or any(rows["sigma_w"].nunique() < 2 for rows in cells.values()):
        return "nothing that these runs could show"
    share = metrics.collapse(list(cells.values()), power)
    return metrics.Estimate(100 * share.value, 100 * share.low, 100 * share.high, share.n).words(".0f", " %")


def power_table(groups: dict[str, Cells], powers: Iterable[float] = (0, 0.5, 1, 1.5, 2, 2.5)) -> pd.DataFrame:
    """For each group of recipes, the share of variance in % that one curve in η/σ_w^p explains, a column a p."""
    if any(rows["sigma_w"].nunique() < 2 for cells in groups.values() for rows in cells.values()):
        return pd.DataFrame([{"": "needs at least two values of σ_w"}])
    return pd.DataFrame(
        {"": title, **{f"p = {p:g}": f"{100 * metrics.collapse(list(cells.values()), p).value:.0f}" for p in powers}}
        for title, cells in groups.items()
    )


def order_table(cells: Cells) -> pd.DataFrame:
    """How well each candidate orders the recipes by spread: rank correlation with interval, the best first."""
    orders = {name: _order(cells, name) for name in _CANDIDATES} if _rankable(cells) else {}
    ranked = sorted(orders.items(), key=lambda item: item[1].value if np.isfinite(item[1].value) else 1)
    rows = [{"ordered by": name, "rank correlation": bracket(order, ".2f"), "seeds": order.n} for name, order in ranked]
    return pd.DataFrame(rows or [{"ordered by": "nothing: too few recipes or scales"}])


def order_words(cells: Cells, name: str) -> str:
    """One line of `order_table` in running text."""
    return _order(cells, name).words(".2f") if _rankable(cells) else "not defined for so few recipes or scales"


def advantage_words(cells: Cells, name: str, rival: str) -> str:
    """By how much one line of `order_table` orders the recipes better than another, and whether seeds could have done it."""
    if not _rankable(cells):
        return "cannot be told for so few recipes or scales"
    both = [[_CANDIDATES[each](metrics.run_of(rows)) for rows in cells.values()] for each in (name, rival)]
    better = metrics.rank_advantage(list(cells.values()), *both)
    told = "one seed cannot say whether by chance" if np.isnan(better.low) else "more than seeds alone would give" if better.low > 0 else "no more than chance could give"
    return f"{better.words('.3f')}, {told}"


def _rankable(cells: Cells) -> bool:
    return len(cells) > 2 and min(rows["sigma_w"].nunique() for rows in cells.values()) > 1


def _as_plain(run: Run) -> Run:
    """Plain SGD at the rate that heavy-ball momentum moves at in the long run."""
    return run.replace(lr=run.lr / (1 - run.momentum)) if run.optimizer == "momentum" else run


def _order(cells: Cells, name: str) -> metrics.Estimate:
    return metrics.rank_correlation(list(cells.values()), [_CANDIDATES[name](metrics.run_of(rows)) for rows in cells.values()])


_CANDIDATES: dict[str, Callable[[Run], float]] = {
    "driving clock": lambda run: getattr(run_clocks(run), active_clock(run)),
    "driving clock, momentum at η/(1 − μ)": lambda run: getattr(run_clocks(_as_plain(run)), active_clock(run)),
    "T_SGD": lambda run: run_clocks(run).t_sgd,
    "T_L2": lambda run: run_clocks(run).t_l2,
    "T_adapt = Σ η": lambda run: run_clocks(run).t_adapt,
    "steps": lambda run: run_clocks(run).steps,
    "epochs": lambda run: run.epochs,
}


def misplaced_table(cells: Cells, most: int = 5) -> pd.DataFrame:
    """The recipes whose rank by driving clock is farthest from their rank by spread."""
    if not _rankable(cells):
        return pd.DataFrame([{"recipe": "too few recipes or scales"}])
    spreads = 100 * np.ptp(metrics.stack(list(cells.values())).mean(0), axis=1)
    clocks = [_CANDIDATES["driving clock"](metrics.run_of(rows)) for rows in cells.values()]
    frame = pd.DataFrame({"recipe": [label(name) for name in cells], "driving clock": clocks, "spread (pp)": spreads})
    frame["place by clock"] = frame["driving clock"].rank(ascending=False).astype(int)
    frame["place by spread"] = frame["spread (pp)"].rank().astype(int)
    worst = (frame["place by clock"] - frame["place by spread"]).abs().sort_values(ascending=False).index[:most]
    return frame.loc[worst].assign(**{name: frame[name].map(two_digits) for name in ("driving clock", "spread (pp)")})


def flow_words(results: pd.DataFrame) -> str:
    """Σ η of a recipe."""
    return two_digits(run_clocks(metrics.run_of(results)).t_adapt)


def selected_words(results: pd.DataFrame) -> str:
    """The median epoch of the validation minimum, and the horizon."""
    return f"epoch {results['selected_epoch'].median():.0f} of {results['epochs'].iloc[0]}"


def grid_words(results: pd.DataFrame) -> str:
    """How many scales there are, and their ends."""
    scales = sorted(results["sigma_w"].unique())
    return f"{len(scales)} scales from {scales[0]:g} to {scales[-1]:g}" if len(scales) > 1 else f"a single scale, {scales[0]:g}"


_CLOCK_LABELS = {"t_sgd": "T_SGD", "t_l2": "T_L2", "t_adapt": "T_adapt"}


def clock_words(cells: Cells, regime: str) -> str:
    """A sentence that holds the driving clock of the first recipe against the same clock of a regime of the paper."""
    run = metrics.run_of(next(iter(cells.values())))
    name = active_clock(run)
    ours, theirs = getattr(run_clocks(run), name), getattr(paper_clocks(regime), name)
    return f"{_CLOCK_LABELS[name]} of {LABELS[run.optimizer]} is {two_digits(ours)} here and {two_digits(theirs)} in the paper"


def norm_factor(results: pd.DataFrame, epoch: int) -> str:
    """The ratio of the largest to the smallest seed-mean norm over σ_w at one epoch (0: initialization, -1: the last)."""
    norms = results.assign(norm=results["norm"].str[epoch]).groupby("sigma_w")["norm"].mean()
    return two_digits(norms.max() / norms.min())


def each(cells: Cells, words: Callable[[pd.DataFrame], str]) -> str:
    """One phrase for several cells."""
    return "; ".join(f"{label(name)} {words(rows)}" for name, rows in cells.items())


def noise_table(panels: dict[str, Cells]) -> pd.DataFrame:
    """A row a recipe of the book, under the first claim that has it: its spread with interval, the noise floor, and p."""
    rows, shown = [], set()
    for title, cells in panels.items():
        for name, mine in cells.items():
            if mine["sigma_w"].nunique() > 1 and mine["seed"].nunique() > 1 and not shown.issuperset(mine["run_id"]):
                shown.update(mine["run_id"])
                spread, (floor, p) = metrics.spread(mine), metrics.noise_floor(mine)
                rows.append(
                    {"claim": title, "recipe": label(name), "spread (pp)": bracket(spread, ".1f"), "noise floor (pp)": f"{floor:.1f}"}
                    | {"p": f"{p:.2g}", "beyond seeds": "yes" if spread.value > floor and p <= 0.05 else "no", "seeds": spread.n}
                )
    return pd.DataFrame(rows)


def disagreement_table(cells: Cells) -> pd.DataFrame:
    """A row a recipe: disagreement over scale and over seed, and what the accuracies alone demand of the former."""
    rows = []
    for name, mine in cells.items():
        ends = metrics.by_seed(mine).mean().iloc[[0, -1]]
        rows.append(
            {
                "recipe": label(name),
                "smallest against largest σ_w (%)": bracket(metrics.disagreement_over(mine, "sigma_w"), ".1f"),
                "demanded by accuracy (%)": f"{100 * abs(ends.iloc[1] - ends.iloc[0]):.1f}",
                "at most, if never both err (%)": f"{min(100.0, 100 * (2 - ends.sum())):.1f}",
                "seed against seed (%)": bracket(metrics.disagreement_over(mine, "seed"), ".1f"),
                "seeds": mine["seed"].nunique(),
            }
        )
    return pd.DataFrame(rows)


class Page(str):
    """A piece of HTML that displays itself in a notebook, with subscripts for symbols such as σ_w and T_SGD."""

    def _repr_html_(self) -> str:
        return subscripts(self)


def html_table(frame: pd.DataFrame, classes: str | None = None) -> Page:
    """A table for a page, without an index."""
    table = frame.to_html(index=False, border=0, float_format=lambda value: f"{value:.4g}", na_rep="–", classes=classes)
    return Page(table)


def cards(claim: Claim, panels: dict[str, Cells]) -> Page:
    """A verdict card for every panel: the outcome, the reason, each condition with what was measured.

    Where a reader's own runs stand beside shipped ones of the same preset, a paragraph first says what changed.
    """
    own = next((cells for title, cells in panels.items() if ", your parameters" in title), {})
    shipped = next((cells for title, cells in panels.items() if ", shipped" in title), {})
    changed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in _changes(own, shipped))
    first = f"<p>What your parameters changed:</p><ul>{changed}</ul>" if changed else ""
    grids = {title: next((claim.runs(preset=preset) for preset in PRESETS if title.startswith(preset)), ()) for title in panels if ", your parameters" not in title}
    return Page(first + "".join(_card(claim.verdict(cells, grids.get(title, ())), title) for title, cells in panels.items()))


def _changes(own: Cells, shipped: Cells, most: int = 5) -> list[str]:
    """A sentence a cell: its spread in the shipped rows and in the reader's, and what became of its driving clock."""
    sentences = []
    for name in [name for name in own if name in shipped][:most]:
        if min(own[name]["sigma_w"].nunique(), shipped[name]["sigma_w"].nunique()) < 2:
            continue
        before, after = metrics.spread(shipped[name]).value, metrics.spread(own[name]).value
        run, base = metrics.run_of(own[name]), metrics.run_of(shipped[name])
        clock = active_clock(run)
        now, then = getattr(run_clocks(run), clock), getattr(run_clocks(base), clock)
        factor = f"{_CLOCK_LABELS[clock]} is {two_digits(now / then)} times as large" if then else f"{_CLOCK_LABELS[clock]} is now {two_digits(now)}"
        verb = "rises" if after > before + 0.05 else "falls" if after < before - 0.05 else "goes"
        sentences.append(f"{label(name)}: the spread {verb} from {before:.1f} to {after:.1f} pp; {factor}")
    return sentences


def _card(verdict: Verdict, title: str) -> str:
    lines = "".join(
        f"<li><strong>{line.judged}</strong>: {html.escape(line.condition.says)} — measured "
        f"{html.escape(_beside(line.estimate, line.condition.bound))}</li>"
        for line in verdict.lines
    )
    return (
        f'<div class="initmem-verdict initmem-{verdict.outcome}"><p class="initmem-heading">'
        f"{html.escape(verdict.title.capitalize())} on {html.escape(title)}</p>"
        f"<p>{html.escape(verdict.reason[0].upper() + verdict.reason[1:])}.</p><ul>{lines}</ul></div>"
    )


def _beside(estimate: metrics.Estimate, bound: float) -> str:
    """An estimate with as many decimals, two or more, as show on which side of the bound its value and its ends lie."""
    numbers = [number for number in estimate[:3] if np.isfinite(number) and number != bound]
    digits = next((digits for digits in range(2, 6) if all(round(number, digits) != bound for number in numbers)), 6)
    return format(estimate, f".{digits}f")


def verdict_page(claim: Claim) -> Page:
    """A claim on the page of verdicts: what the paper says, a card for each preset with runs, and what a sceptic would say."""
    shipped = store.current(store.read(cached=False))
    figure, condition = _paper_figure(claim), claim.paper.condition
    paper = "" if claim.ours else f" <em>The paper:</em> {html.escape(figure if figure == condition else f'{figure} ({condition})')}."
    parts = [f"<p>{html.escape(claim.statement)}{paper}</p>"]
    for preset in PRESETS:
        rows = at_hand(claim, preset, shipped)
        cells = claim.split(rows, preset=preset)
        verdict = claim.verdict(cells, claim.runs(preset=preset))
        if verdict.outcome != "untested":
            parts.append(_card(verdict, f"{place(preset, cells)} ({len(rows)} runs, {seeds_in(cells)})"))
    if len(parts) == 1:
        parts.append("<p>Not tested yet.</p>")
    return Page("".join(parts) + f"<p><strong>A sceptic would say:</strong> {html.escape(claim.sceptic)}</p>")


def scoreboard_page(pages: bool = True) -> Page:
    """The scoreboard of the front page: a row a claim, the paper's figure, a verdict for each preset that has one."""
    verdicts = scoreboard(store.current(store.read(cached=False)))
    tested = [preset for preset in PRESETS if any(v.outcome != "untested" for (_, scale), v in verdicts.items() if scale == preset)]
    rows = []
    for name, claim in _claims(verdicts):
        cells = ""
        for preset in tested:
            verdict = verdicts[name, preset]
            detail = verdict.reason if verdict.outcome != "untested" else ""
            spread = [line for line in verdict.lines if line.condition.metric == "spread"]
            if spread and verdict.outcome == "reproduced":
                detail = f"spread {spread[0].estimate.words('.1f', ' pp')}"
            cells += (
                f'<td data-label="{preset}"><span class="initmem-{verdict.outcome}">{html.escape(verdict.title)}</span>'
                f"<small>{html.escape(detail)}</small></td>"
            )
        title = f'<a href="{claim.chapter}.html">{html.escape(claim.title)}</a>' if pages else html.escape(claim.title)
        rows.append(
            f'<tr><th scope="row">{title}<small>{html.escape(claim.statement)}</small></th>'
            f'<td data-label="the paper">{html.escape(_paper_figure(claim))}</td>{cells}</tr>'
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ["claim", "the paper", *tested])
    rest = "".join(f"<p>No claim has been tested at <code>{preset}</code> scale yet.</p>" for preset in PRESETS if preset not in tested)
    return Page(f'<table class="initmem-scoreboard"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>{rest}')


def pilot_table(results: pd.DataFrame) -> pd.DataFrame:
    """A row a pilot recipe: its clocks, and the worst over its runs of the best training accuracy."""
    rows = []
    for (dataset, optimizer, lr), mine in results.groupby(["dataset", "optimizer", "lr"]):
        clocks = run_clocks(metrics.run_of(mine))
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
        limits = [f"{sign} {part[key]:g}" for key, sign in _LIMITS.items() if key in part and part[key] < 1e9]
        kind = ("list of " if "items" in kinds[0] else "") + {"number": "number", "integer": "whole number"}.get(part["type"], "name")
        rows.append({"name": name, "type": " ".join([kind, *limits]), "meaning": schema["description"]})
    return pd.DataFrame(rows)


_LIMITS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
