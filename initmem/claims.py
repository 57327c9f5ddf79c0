"""The ledger: claims, the runs that decide them, and verdicts computed from a table of results by a written rule."""

import functools
from typing import Annotated, Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, BeforeValidator, Field

from initmem import metrics
from initmem.config import (
    OPTIMIZERS,
    PRESETS,
    Checked,
    Count,
    InitmemError,
    NonNegative,
    Optimizer,
    Positive,
    PresetName,
    Run,
    grid,
    preset,
    unknown,
)
from initmem.metrics import Estimate
from initmem.store import book_dir

Outcome = Literal["reproduced", "partly", "not", "untested"]
_list = BeforeValidator(lambda value: list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else [value])


class Parameters(Checked):
    """What a chapter lets its reader change. None means: as the ledger's recipe for the preset has it."""

    preset: Annotated[PresetName, Field(description="scale of the experiment: digits, laptop or paper")] = "digits"
    sigma_w: Annotated[
        Annotated[list[Positive], Field(min_length=1), _list] | None,
        Field(description="scales of the initial kernels, each above 0; the paper's lie in [0.1, 2.5]"),
    ] = None
    seeds: Annotated[Count | None, Field(description="number of seeds, from 0 on; at least 3 for a full verdict")] = None
    lr: Annotated[Positive | None, Field(description="learning rate η of the optimizers under test, constant")] = None
    weight_decay: Annotated[NonNegative | None, Field(description="λ of the optimizers under test")] = None
    batch_size: Annotated[int | None, Field(ge=2, strict=True, description="images a step b, at most the training images")] = None
    epochs: Annotated[Count | None, Field(description="passes over the training images")] = None
    optimizers: Annotated[
        Annotated[list[Optimizer], Field(min_length=1), _list] | None,
        Field(description="optimizers under test: sgd, momentum, adam, adamw, muon"),
    ] = None


class Condition(Checked):
    """One line of a claim's rule: a metric of one optimizer's runs, and the bound it must keep."""

    metric: Literal["spread", "spread_ratio", "interpolated_share", "radial_memory"]
    optimizer: Optimizer
    reference: Optimizer | None = None
    at_least: float | None = None
    at_most: float | None = None
    says: str

    def measure(self, results: pd.DataFrame) -> Estimate:
        """The metric on the rows of this condition's optimizers."""
        rows = [results[results["optimizer"] == name] for name in (self.optimizer, self.reference) if name]
        return getattr(metrics, self.metric)(*rows)

    def judge(self, estimate: Estimate) -> str:
        """`met`, `violated` or `open`, by the whole interval; by the value alone where one seed leaves no interval."""
        low, high = (estimate.low, estimate.high) if estimate.n > 1 else (estimate.value, estimate.value)
        if self.at_most is not None:
            low, high, bound = -high, -low, -self.at_most
        else:
            bound = self.at_least
        return "met" if low >= bound else "violated" if high < bound else "open"


class Paper(Checked):
    """What the paper reports."""

    condition: str
    spread_pp: dict[Optimizer, float] = {}
    regime: str | None = None


class Claim(Checked):
    """One claim of the ledger. `chapter` and `conditions` are absent until it is tested."""

    id: str
    title: str
    statement: str
    paper: Paper
    chapter: str | None = None
    optimizers: list[Optimizer] = []
    context: list[Optimizer] = []
    conditions: list[Condition] = []
    live_seeds: Count = 2
    """Seeds to train where none are asked for and no stored rows answer: about a minute on digits."""

    def recipe(self, parameters: Parameters | None = None, **changes: Any) -> dict[str, Run]:
        """One base run an optimizer, from the ledger's recipe with the reader's parameters laid over it.

        Optimizers under test take every change; those for context keep their learning rate and weight decay, and share
        preset, batch size and epochs.
        """
        p = parameters or Parameters(**changes)
        ours = ledger().recipes[p.preset].optimizers
        under_test = p.optimizers or self.optimizers
        common = {name: getattr(p, name) for name in ("batch_size", "epochs") if getattr(p, name) is not None}
        own = {name: getattr(p, name) for name in ("lr", "weight_decay") if getattr(p, name) is not None}
        return {
            name: preset(p.preset).replace(optimizer=name, **{**ours[name], **common, **(own if name in under_test else {})})
            for name in dict.fromkeys([*under_test, *self.context])
        }

    def runs(self, parameters: Parameters | None = None, **changes: Any) -> list[Run]:
        """Every run the claim is judged by, over σ_w and seeds."""
        p = parameters or Parameters(**changes)
        scale = ledger().recipes[p.preset]
        axes = dict(seed=range(p.seeds or scale.seeds), sigma_w=p.sigma_w or scale.sigma_w)
        return [run for base in self.recipe(p).values() for run in grid(base, **axes)]

    def verdict(self, results: pd.DataFrame) -> "Verdict":
        """Judge a table of runs of one preset by the ledger's rule."""
        if results["sigma_w"].nunique() < 2:
            return Verdict(claim=self, outcome="untested", reason="memory of σ_w needs at least two values of σ_w")
        asked = [c for c in self.conditions if {c.optimizer, c.reference or c.optimizer} <= set(results["optimizer"])]
        if not asked:
            return Verdict(claim=self, outcome="untested", reason="no runs of the optimizers that the rule asks for")
        if not all(metrics.by_seed(results[results["optimizer"] == c.optimizer]).size for c in asked):
            return Verdict(claim=self, outcome="untested", reason="too few runs came to an end")
        estimates = [condition.measure(results) for condition in asked]
        judged = [condition.judge(estimate) for condition, estimate in zip(asked, estimates, strict=True)]
        seeds, enough = min(estimate.n for estimate in estimates), ledger().min_seeds
        if judged[0] == "violated":
            outcome, reason = "not", f"the claim's core does not hold here: {asked[0].says}"
        elif len(asked) < len(self.conditions):
            outcome, reason = "partly", f"{len(asked)} of the rule's {len(self.conditions)} conditions could be tested"
        elif set(judged) == {"met"} and seeds >= enough:
            outcome, reason = "reproduced", f"all {len(asked)} conditions are met, over {seeds} seeds"
        elif set(judged) == {"met"}:
            outcome, reason = "partly", f"all {len(asked)} conditions are met, but {seeds} of the {enough} seeds asked for"
        else:
            outcome, reason = "partly", f"{judged.count('met')} of {len(asked)} conditions are met over {seeds} seeds"
        dropped, diverged = results["seed"].nunique() - seeds, int((results["status"] == "diverged").sum())
        if dropped or diverged:  # never hidden, and never a full verdict
            outcome = "partly" if outcome == "reproduced" else outcome
            reason += f"; {dropped} seeds lack a run and are left out, {diverged} runs diverged"
        lines = [Judged(condition=c, estimate=e, judged=j) for c, e, j in zip(asked, estimates, judged, strict=True)]
        return Verdict(claim=self, outcome=outcome, reason=reason, lines=lines)


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
    if name not in ledger().claims:
        raise unknown("claim", name, ledger().claims)
    return ledger().claims[name]


def at_hand(claim: Claim, preset: str, results: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that belong to a claim's recipe at one preset, from the copy of the data that has most."""
    wanted = claim.runs(preset=preset)
    best = results.head(0)
    for _, rows in results.groupby("data_fingerprint"):
        ids = [run.run_id(rows["data_fingerprint"].iloc[0]) for run in wanted]
        mine = rows[rows["run_id"].isin(ids)]
        best = mine if len(mine) > len(best) else best
    return best


def scoreboard(results: pd.DataFrame) -> dict[tuple[str, str], Verdict]:
    """The verdict on every claim at every preset, from the rows at hand; complete seeds alone count."""
    verdicts = {}
    for name, entry in ledger().claims.items():
        for scale in PRESETS:
            if not entry.conditions:
                verdicts[name, scale] = Verdict(claim=entry, outcome="untested", reason="its chapter is not written yet")
                continue
            rows = at_hand(entry, scale, results)
            verdicts[name, scale] = (
                entry.verdict(rows) if len(rows) else Verdict(claim=entry, outcome="untested", reason="no runs yet")
            )
    return verdicts


def testable() -> list[str]:
    """Ids of the claims that have an experiment and a rule."""
    return [name for name, entry in ledger().claims.items() if entry.conditions]
