"""The ledger: claims, the runs that decide them, and verdicts computed from a table of results by a written rule."""

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, Field

from initmem import metrics
from initmem.config import (
    PRESETS,
    Arch,
    BatchSize,
    Checked,
    Count,
    InitmemError,
    NonNegative,
    Optimizer,
    Positive,
    PresetName,
    Run,
    Several,
    grid,
    preset,
    unknown,
)
from initmem.metrics import Estimate
from initmem.store import RECIPE_FIELDS, RUN_FIELDS, book_dir, current, read

Outcome = Literal["reproduced", "partly", "not", "untested"]


class Parameters(Checked):
    """What a chapter lets its reader change. None means: as the ledger's recipe for the preset has it."""

    preset: Annotated[PresetName, Field(description="scale of the experiment: digits, laptop or paper")] = "digits"
    sigma_w: Annotated[
        Annotated[list[Positive], *Several] | None,
        Field(description="scales of the initial kernels, each above 0; the paper's lie in [0.1, 2.5]"),
    ] = None
    seeds: Annotated[Count | None, Field(description="number of seeds, from 0 on; at least 3 for a full verdict")] = None
    lr: Annotated[Positive | None, Field(description="learning rate η under test, constant; a chapter's multiples apply to it")] = None
    weight_decay: Annotated[NonNegative | None, Field(description="λ of the recipes under test")] = None
    batch_size: Annotated[BatchSize | None, Field(description="images a step b, at most the training images")] = None
    epochs: Annotated[Count | None, Field(description="passes over the training images")] = None
    optimizers: Annotated[
        Annotated[list[Optimizer], *Several] | None,
        Field(description="optimizers under test: sgd, momentum, adam, adamw, muon"),
    ] = None


Multiples = dict[Literal["epochs", "lr", "batch_size"], Positive]


class Cell(Checked):
    """One recipe of a claim: the recipe of its optimizer, with numbers multiplied (`times`) and fields replaced."""

    optimizer: Optimizer
    arch: Arch = "resnet9"
    dataset: str | None = None
    precision: Literal["fp32", "bf16"] | None = None
    weight_decay: NonNegative | None = None
    times: Multiples = {}
    context: bool = False
    """Shown beside the cells under test, not changed with them and not judged."""

    def base(self, preset_name: str, times: dict[str, float], common: dict[str, Any], own: dict[str, Any]) -> Run:
        """The run to lay over σ_w and seeds. `common` replaces fields of every cell, `own` those of cells under test.

        `times` multiplies fields of every cell, before the cell's own multiples.
        """
        scale = ledger().recipes[preset_name]
        start = preset(preset_name).model_dump() | {"optimizer": self.optimizer, "arch": self.arch}
        start |= scale.optimizers[self.optimizer] | common | ({} if self.context else own)
        if self.arch != "resnet9":
            start["width"] = min(start["width"], 16)  # that of He et al. 2016; ResNet-9's 64 would be another network
        own_value = {name: getattr(self, name) for name in ("dataset", "precision", "weight_decay") if name not in own}
        start |= {name: value for name, value in own_value.items() if value is not None}
        factors = [*times.items(), *self.times.items()]
        for name, factor in factors:
            start[name] = start[name] * factor if name == "lr" else max(1, round(start[name] * factor))
        try:
            return Run(**start)
        except InitmemError as error:
            multiplied = ", ".join(f"{name} × {factor:g}" for name, factor in factors)
            raise InitmemError(f"{error}, in the recipe with {multiplied}" if multiplied else str(error)) from None


class Condition(Checked):
    """One line of a claim's rule: a metric of some cells' runs, and the bound it must keep."""

    metric: Literal[
        "spread", "spread_ratio", "interpolated_share", "interpolated_at_largest", "radial_memory",
        "trend", "trend_ratio", "clock_order", "clock_advantage", "collapse", "curve_distance",
    ]  # fmt: skip
    of: str | list[str]
    reference: str | list[str] | None = None
    at_least: float | None = None
    at_most: float | None = None
    control: bool = False
    """Whether it asks for what the question presupposes, and not for the claim itself."""
    says: str

    def cells(self, names: list[str]) -> list[str]:
        """Names of the cells it needs; `all` stands for every one of `names`."""
        asked = [part for side in (self.of, self.reference) if side for part in ([side] if isinstance(side, str) else side)]
        return names if asked == ["all"] else asked

    def measure(self, cells: dict[str, pd.DataFrame]) -> Estimate:
        """The metric on the rows of its cells; a list of tables where several cells make one quantity."""
        if self.of == "all":
            return getattr(metrics, self.metric)(cells)
        sides = [side for side in (self.of, self.reference) if side]
        tables = [cells[side] if isinstance(side, str) else [cells[name] for name in side] for side in sides]
        estimate = getattr(metrics, self.metric)(*tables)
        return estimate._replace(low=math.nan, high=math.nan) if self.metric.startswith("interpolated") else estimate  # a count

    @property
    def bound(self) -> float:
        """The number that the metric must reach, or must not exceed."""
        return self.at_most if self.at_least is None else self.at_least

    def judge(self, estimate: Estimate) -> str:
        """`met`, `violated` or `open`, by the whole interval; by the value where there is none: for one seed, and for counts of networks."""
        low, high = (estimate.value, estimate.value) if math.isnan(estimate.low) else (estimate.low, estimate.high)
        low, high, bound = (low, high, self.bound) if self.at_most is None else (-high, -low, -self.bound)
        return "met" if low >= bound else "violated" if high < bound else "open"


class Paper(Checked):
    """What the paper reports."""

    condition: str
    spread_pp: dict[Optimizer, float] = {}
    regime: str | None = None


class Live(Checked):
    """The part of a claim to train when no stored rows answer: about a minute on digits."""

    seeds: Count = 2
    sigma_w: list[Positive] | None = None
    cells: list[str] | None = None


class Claim(Checked):
    """One claim of the ledger: cells to run, and the conditions that judge them."""

    id: str
    title: str
    statement: str
    sceptic: str
    """What a sceptic would say to our answer."""
    ours: bool = False
    """Whether the claim is this book's own and not the paper's."""
    paper: Paper
    chapter: str
    cells: dict[str, Cell] = {}
    times: dict[PresetName, Multiples] = {}
    """Numbers of every cell multiplied at one preset."""
    cells_of: list[str] = []
    """Claims whose cells this one judges together."""
    sigma_w: dict[PresetName, list[Positive]] = {}
    seeds: dict[PresetName, Count] = {}
    live: Live = Live()
    conditions: list[Condition]

    @property
    def optimizers(self) -> list[str]:
        """The optimizers under test."""
        return list(dict.fromkeys(cell.optimizer for cell in self.cells.values() if not cell.context))

    def recipe(self, parameters: Parameters | None = None, **changes: Any) -> dict[str, Run]:
        """One base run a cell, from the ledger with the reader's parameters laid over it.

        Cells under test take every change, before their own multiples; those for context keep their learning rate and
        weight decay. Raises InitmemError for optimizers that the claim has no place for.
        """
        p = parameters or Parameters(**changes)
        if self.cells_of:
            bases = {f"{name}: {cell}": run for name in self.cells_of for cell, run in claim(name).recipe(p).items()}
            return {name: run for run, name in reversed({run: name for name, run in bases.items()}.items())}
        common = {name: getattr(p, name) for name in ("batch_size", "epochs") if getattr(p, name) is not None}
        own = {name: getattr(p, name) for name in ("lr", "weight_decay") if getattr(p, name) is not None}
        if "weight_decay" in own and any(cell.weight_decay is not None for cell in self.cells.values()):
            raise InitmemError(f"weight_decay = {p.weight_decay:g} does not fit {self.id!r}, whose cells vary it: leave it out")
        return {name: cell.base(p.preset, self.times.get(p.preset, {}), common, own) for name, cell in self._cells_for(p.optimizers).items()}

    def _cells_for(self, optimizers: list[str] | None) -> dict[str, Cell]:
        if not optimizers:
            return self.cells
        if all(name == cell.optimizer for name, cell in self.cells.items()):  # a claim that compares optimizers
            context = {name: cell for name, cell in self.cells.items() if cell.context and name not in optimizers}
            return {name: Cell(optimizer=name) for name in optimizers} | context
        if len(self.optimizers) > 1 or len(optimizers) > 1:
            raise InitmemError(
                f"optimizers = {optimizers} does not fit {self.id!r}, whose cells are made for {', '.join(self.optimizers)}: "
                + ("give one optimizer" if len(self.optimizers) == 1 else "leave it out")
            )
        return {name: cell.model_copy(update=dict(optimizer=optimizers[0])) for name, cell in self.cells.items()}

    def runs(self, parameters: Parameters | None = None, live: bool = False, **changes: Any) -> list[Run]:
        """Every run the claim is judged by, over σ_w and seeds; with `live` the part to train in class."""
        p = parameters or Parameters(**changes)
        if self.cells_of:  # each claim's own scales and seeds, every run once
            return list(dict.fromkeys(run for name in self.cells_of for run in claim(name).runs(p, live)))
        scale, less = ledger().recipes[p.preset], self.live if live else Live(seeds=10**9)
        seeds = p.seeds or min(less.seeds, self.seeds.get(p.preset, scale.seeds))
        sigma_w = p.sigma_w or less.sigma_w or self.sigma_w.get(p.preset, scale.sigma_w)
        bases = [run for name, run in self.recipe(p).items() if name in (less.cells or [name])]
        return [run for base in bases for run in grid(base, seed=range(seeds), sigma_w=sigma_w)]

    def split(self, results: pd.DataFrame, parameters: Parameters | None = None, **changes: Any) -> dict[str, pd.DataFrame]:
        """The rows of each cell, by its name, in the ledger's order; cells without rows are left out."""
        names = {_key(base.model_dump(), RECIPE_FIELDS): name for name, base in self.recipe(parameters, **changes).items()}
        found = [names.get(key) for key in _keys(results, RECIPE_FIELDS)]
        mine = results.assign(cell=found)[results["status"] != "failed"].dropna(subset="cell")
        groups = dict(iter(mine.drop(columns="cell").groupby(mine["cell"], sort=False)))
        return {name: groups[name].reset_index(drop=True) for name in names.values() if name in groups}

    def shipped(self, preset: str = "digits") -> dict[str, pd.DataFrame]:
        """The shipped rows of each cell at one preset, by its name; cells without rows are left out."""
        return self.split(at_hand(self, preset, current(read(cached=False))), preset=preset)

    def verdict(self, cells: dict[str, pd.DataFrame], asked_for: Sequence[Run] = ()) -> "Verdict":
        """Judge the rows of each cell (`split`), all of one preset, by the ledger's rule.

        With `asked_for`, a preset's whole grid, the outcome is at most *partly* while any run of the cells judged is missing.
        """
        if self.cells_of:  # a recipe of which one scale has been run, as in the midst of a sweep, has no spread to be ordered
            cells = {name: rows for name, rows in cells.items() if rows["sigma_w"].nunique() > 1} or cells
        results = pd.concat(cells.values()).drop_duplicates("run_id") if cells else None
        if results is None or results["sigma_w"].nunique() < 2:
            reason = "memory of σ_w needs at least two values of σ_w" if cells else "no runs yet"
            return Verdict(claim=self, outcome="untested", reason=reason)
        asked = [c for c in self.conditions if set(c.cells(list(cells))) <= set(cells)]
        needed = dict.fromkeys(name for c in asked for name in c.cells(list(cells)))
        if self.cells_of and len(cells) < 5:
            return Verdict(claim=self, outcome="untested", reason="fewer than five recipes have runs, too few to be ordered")
        if self.conditions[0] not in asked:
            return Verdict(claim=self, outcome="untested", reason=f"runs are missing for the core condition, that {self.conditions[0].says}")
        if not all(metrics.by_seed(cells[name]).size for name in needed):
            diverged = int((results["status"] == "diverged").sum())
            return Verdict(claim=self, outcome="untested", reason=f"too few runs came to an end: {diverged} of {len(results)} diverged")
        measured = {}
        for number, condition in enumerate(asked):
            with contextlib.suppress(InitmemError):  # its cells share too few σ_w or seeds, as in the midst of a sweep
                estimate = condition.measure(cells)
                if estimate.value == estimate.value:  # not NaN: what it compares does vary
                    measured[number] = estimate
        if 0 not in measured:
            reason = f"the runs at hand share too few σ_w or seeds for the core condition, that {self.conditions[0].says}"
            return Verdict(claim=self, outcome="untested", reason=reason)
        asked, estimates = [asked[number] for number in measured], list(measured.values())
        judged = [condition.judge(estimate) for condition, estimate in zip(asked, estimates, strict=True)]
        seeds, enough = min(estimate.n for estimate in estimates), ledger().min_seeds
        if judged[0] == "violated":
            outcome, reason = "not", f"the core condition fails, which is that {asked[0].says}"
        elif len(asked) < len(self.conditions):
            outcome, reason = "partly", f"{len(asked)} of the rule's {len(self.conditions)} conditions could be tested: {_tally(judged)}, over {_seeds(seeds)}"
        elif set(judged) == {"met"} and seeds >= enough:
            outcome, reason = "reproduced", f"{_all(len(asked))} met, over {_seeds(seeds)}"
        elif set(judged) == {"met"}:
            outcome, reason = "partly", f"{_all(len(asked))} met, but {seeds} of the {enough} seeds asked for"
        else:
            outcome, reason = "partly", f"of {len(asked)} conditions {_tally(judged)}, over {_seeds(seeds)}"
        judged_rows = pd.concat([cells[name] for name in needed]).drop_duplicates("run_id")
        dropped = max(cells[name]["seed"].nunique() - len(metrics.by_seed(cells[name])) for name in needed)
        diverged = int((judged_rows["status"] == "diverged").sum())
        if dropped or diverged:  # never hidden, and never a full verdict
            outcome = "partly" if outcome == "reproduced" else outcome
            reason += f"; {_seeds(dropped)} lack{'s' * (dropped == 1)} a run, left out here; runs diverged: {diverged}"
        recipes = set(_keys(judged_rows, RECIPE_FIELDS))
        grid_keys = {_key(run.model_dump(), RUN_FIELDS) for run in asked_for if _key(run.model_dump(), RECIPE_FIELDS) in recipes}
        if missing := len(grid_keys - set(_keys(judged_rows, RUN_FIELDS))):
            outcome = "partly" if outcome == "reproduced" else outcome
            reason += f"; {missing} of the {len(grid_keys)} runs of these recipes are missing"
        if unfitted := sum(metrics.interpolation_epoch(curve) is None for curve in judged_rows["train_accuracy"]):
            reason += f"; {unfitted} of {len(judged_rows)} networks never came to 99.5 % training accuracy"
        lines = [Judged(condition=c, estimate=e, judged=j) for c, e, j in zip(asked, estimates, judged, strict=True)]
        return Verdict(claim=self, outcome=outcome, reason=reason, lines=lines)


def _tally(judged: Sequence[str]) -> str:
    """How many conditions are met, violated and open: `3 are met, 1 is open`."""
    counts = {word: judged.count(word) for word in ("met", "violated", "open") if word in judged}
    return ", ".join(f"{number} {'is' if number == 1 else 'are'} {word}" for word, number in counts.items())


def _seeds(number: int) -> str:
    return f"{number} seed{'s' * (number != 1)}"


def _all(conditions: int) -> str:
    return {1: "the one condition is", 2: "both conditions are"}.get(conditions, f"all {conditions} conditions are")


class Judged(BaseModel):
    """One condition with what was measured."""

    condition: Condition
    estimate: Estimate
    judged: Literal["met", "violated", "open"]


class Verdict(BaseModel):
    """What the ledger's rule says about a table of runs."""

    claim: Claim
    outcome: Outcome
    reason: str
    lines: list[Judged] = []

    @property
    def title(self) -> str:
        """The outcome in words."""
        return {"not": "not reproduced", "partly": "partly reproduced"}.get(self.outcome, self.outcome)

    def __str__(self) -> str:
        marks = {"met": "✓", "violated": "✗", "open": "?"}
        lines = [f"  {marks[line.judged]} {line.condition.says}: {line.estimate:.2f}" for line in self.lines]
        return "\n".join([f"{self.claim.title}: {self.title} — {self.reason}", *lines])


class Recipe(Checked):
    """What a preset trains: scales, number of seeds, and each optimizer's settings."""

    sigma_w: list[Positive]
    seeds: Count
    optimizers: dict[Optimizer, dict[str, float]]


class Ledger(Checked):
    """All of claims.yml."""

    min_seeds: Count
    claims: dict[str, Claim]
    recipes: dict[PresetName, Recipe]


@functools.cache
def ledger() -> Ledger:
    """The ledger, read from book/claims.yml and checked. Raises InitmemError for a fault in it."""
    content = yaml.safe_load((book_dir() / "claims.yml").read_text(encoding="utf-8"))
    content["claims"] = {name: {"id": name, **claim} for name, claim in content["claims"].items()}
    return Ledger(**content)


def claim(name: str) -> Claim:
    """One claim by its id. Raises InitmemError for an unknown one."""
    if str(name) not in ledger().claims:
        raise unknown("claim", name, ledger().claims)
    return ledger().claims[str(name)]


def at_hand(claim: Claim, preset: str, results: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that belong to a claim's recipe at one preset, from the copy of the data that has most."""
    wanted = {_key(run.model_dump(), RUN_FIELDS) for run in claim.runs(preset=preset)}
    mine = results.loc[[key in wanted for key in _keys(results, RUN_FIELDS)]]
    copies = mine["data_fingerprint"].value_counts()
    return mine[mine["data_fingerprint"] == copies.index[0]] if len(copies) else mine


def _key(fields: Mapping[str, Any], names: Sequence[str]) -> tuple:
    """What identifies a run or recipe: `momentum` counts for the optimizer of that name alone."""
    return tuple(fields[name] if name != "momentum" or fields["optimizer"] == "momentum" else None for name in names)


def _keys(results: pd.DataFrame, names: Sequence[str]) -> list[tuple]:
    return [_key(row, names) for row in results[list(names)].to_dict("records")]


def scoreboard(results: pd.DataFrame) -> dict[tuple[str, str], Verdict]:
    """The verdict on every claim at every preset, from the rows at hand; complete seeds alone count."""
    return {
        (name, scale): entry.verdict(entry.split(at_hand(entry, scale, results), preset=scale), entry.runs(preset=scale))
        for name, entry in ledger().claims.items()
        for scale in PRESETS
    }
