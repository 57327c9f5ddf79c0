"""The run explorer and the forgetting calculator: all shipped runs as compact JSON inside the page, drawn by the reader's browser.

The data lie in the page itself because a page opened from a folder (file://) may fetch nothing.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from initmem import metrics, store
from initmem.clocks import PAPER_REGIMES, active_clock, run_clocks
from initmem.config import PRESETS, InitmemError, Run, preset
from initmem.plots import recipe_keys

POINTS = 16  # of a norm trajectory, denser at the start where norms move fastest
PILOT = 1000  # seeds from here on chose the learning rates and decide nothing
STAMP = ["package_version", "torch_version", "git_revision", "device", "threads", "precision_used", "lanes", "data_source", "date"]
# Rows that agree in these differ in σ_w and seed alone.
RECIPE = [*store.RECIPE_FIELDS, "data_fingerprint", "engine"]
SCALE = ["dataset", "train_size", "val_size"]  # what tells the preset of a run
PARTS = Path(__file__).parent / "parts"


def short(value: float, digits: int = 3) -> float | None:
    """A number with a few significant digits; None (JSON has no NaN) if it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def thin(epochs: int) -> list[int]:
    """The epochs, 0 to the last, at which a norm trajectory is kept."""
    return np.unique(np.round(np.linspace(0, 1, POINTS) ** 1.5 * epochs).astype(int)).tolist()


def coded(frame: pd.DataFrame, columns: list[str]) -> tuple[list[dict], list[int]]:
    """The distinct rows of some columns, and which of them each row is: a table in which few values repeat becomes small."""
    groups = frame.groupby(columns, sort=True, dropna=False)
    codes, keys = groups.ngroup().tolist(), frame[columns].assign(_=groups.ngroup()).drop_duplicates("_").sort_values("_")
    return json.loads(keys[columns].to_json(orient="records", double_precision=15)), codes


def recipes(frame: pd.DataFrame) -> tuple[list[dict], list[int]]:
    """Every recipe with its clocks and the clock that drives it, and the number of the recipe of each row."""
    known, codes = coded(frame, RECIPE)
    keys = dict(zip(codes, frame.index))  # a row of each
    for number, recipe in enumerate(known):
        recipe["key"] = recipe_keys(frame.loc[[keys[number]]])[0]
        recipe["preset"] = next((name for name in PRESETS if all(recipe[field] == getattr(preset(name), field) for field in SCALE)), "")
        run = Run(**{name: recipe[name] for name in RECIPE if name in Run.model_fields})
        times = run_clocks(run)
        recipe.update(t_sgd=short(times.t_sgd), t_l2=short(times.t_l2), t_adapt=short(times.t_adapt), driving=active_clock(run))
    return known, codes


def explorer_data(frame: pd.DataFrame) -> dict[str, Any]:
    """All rows for the explorer: recipes and provenance once each, then one list a column."""
    frame = frame.sort_values(["dataset", "optimizer", "lr", "seed", "sigma_w"], ignore_index=True)
    known, codes = recipes(frame)
    stamps, stamp_codes = coded(frame, STAMP)
    norms = [
        [short(norm[epoch]) for epoch in thin(epochs) if epoch < len(norm)] for norm, epochs in zip(frame["norm"], frame["epochs"], strict=True)
    ]
    return {
        "recipes": known,
        "stamps": stamps,
        "epochs": {epochs: thin(epochs) for epochs in sorted(frame["epochs"].unique().tolist())},
        "pilot": PILOT,
        "runs": {
            "id": frame["run_id"].tolist(),
            "recipe": codes,
            "stamp": stamp_codes,
            "sigma": frame["sigma_w"].tolist(),
            "seed": frame["seed"].tolist(),
            "selected": [short(100 * value, 5) for value in frame["test_accuracy"]],
            "last": [short(100 * value, 5) for value in frame["last_test_accuracy"]],
            "train": [short(100 * curve[-1], 5) if len(curve) else None for curve in frame["train_accuracy"]],
            "best": frame["selected_epoch"].tolist(),
            "seconds": [short(value) for value in frame["wall_seconds"]],
            "diverged": (frame["status"] == "diverged").astype(int).tolist(),
            "norm": norms,
        },
    }


def calculator_data(frame: pd.DataFrame) -> dict[str, Any]:
    """Every shipped recipe whose spread can be measured, with the estimate, and the paper's regimes to start from."""
    known, codes = recipes(frame)
    measured = []
    for number, rows in frame.groupby(np.array(codes, dtype=int)):
        deciding = rows[rows["seed"] < PILOT]
        rows = deciding if deciding["sigma_w"].nunique() > 1 else rows
        if rows["sigma_w"].nunique() < 2 or not len(table := metrics.by_seed(rows)):
            continue
        estimate = metrics.spread(rows)
        measured.append(
            known[number]
            | dict(
                spread=short(estimate.value), low=short(estimate.low), high=short(estimate.high), n=estimate.n,
                scales=table.shape[1], least=float(table.columns.min()), most=float(table.columns.max()),
                pilot=bool(rows["seed"].min() >= PILOT),
            )  # fmt: skip
        )
    paper = {name: {key: value for key, value in regime.items() if key != "clock"} for name, regime in PAPER_REGIMES.items()}
    return {"recipes": measured, "paper": paper}


def markup(name: str, frame: pd.DataFrame, static: str) -> str:
    """The HTML of the explorer or the calculator with its data and scripts; `static` is the way to the folder of the scripts."""
    data = {"explorer": explorer_data, "calculator": calculator_data}[name](frame)
    # `<` could end the script element early.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    part = (PARTS / f"{name}.html").read_text(encoding="utf-8")
    scripts = "".join(f'<script defer src="{static}/{file}"></script>' for file in ("d3.min.js", "plot.umd.min.js", f"{name}.js"))
    style = f'<link rel="stylesheet" href="{static}/explorer.css">'
    return f'{style}{part}<script type="application/json" id="{name}-data">{text}</script>{scripts}'


class Interactive(SphinxDirective):
    """`{explorer}` or `{calculator}`: the part of that name, on the shipped results."""

    def run(self) -> list[nodes.Node]:
        try:
            frame = store.read(cached=False)
        except InitmemError as error:
            raise self.error(str(error)) from None
        for path in [PARTS / f"{self.name}.html", *store.shipped_dir().glob("*.parquet")]:
            self.env.note_dependency(str(path))
        static = "../" * self.env.docname.count("/") + "_static/explorer"
        return [nodes.raw("", markup(self.name, frame, static), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the two directives."""
    app.add_directive("explorer", Interactive)
    app.add_directive("calculator", Interactive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
