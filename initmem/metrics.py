"""What is measured on a table of runs, with intervals over seeds.

All functions take rows of one recipe: runs that differ in sigma_w and seed alone. The paired design lets a seed's runs
be resampled together. Intervals are 95 % t intervals with the bootstrap's standard error over seeds (Hesterberg 2015):
percentiles would hold the true value in half of all cases with two seeds, and in three quarters with three.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit
from scipy.stats import rankdata

from initmem.clocks import active_clock, run_clocks
from initmem.config import InitmemError, Run, unknown
from initmem.store import RECIPE_FIELDS, RUN_FIELDS

RESAMPLES = 4000
INTERPOLATED = 0.995  # training accuracy from which a network counts as interpolating (the paper)


class Estimate(NamedTuple):
    """A number, its 95 % interval over seeds (NaN with one seed), and the number of seeds."""

    value: float
    low: float
    high: float
    n: int

    def _nothing(self) -> str:
        if not self.n:
            return "not measurable (no seed has all its runs)"
        return "not measurable (nothing varies that it compares)" if np.isnan(self.value) else ""

    def __format__(self, spec: str) -> str:
        """`format(estimate, ".1f")` gives the value with its interval and n, as the book prints it."""
        spec = spec or ".3g"
        if why := self._nothing():
            return why
        if np.isnan(self.low):
            return f"{self.value:{spec}} (n = {self.n}, no interval)"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}] (n = {self.n})"

    def words(self, spec: str = ".1f", unit: str = "") -> str:
        """The same for running text: `13.1 pp (95 % interval 11.8 to 14.4, 10 seeds)`."""
        value = f"{self.value:{spec}}{unit}"
        if why := self._nothing():
            return why
        if np.isnan(self.low):
            return f"{value} ({'one seed' if self.n == 1 else f'{self.n} seeds'}, no interval)"
        return f"{value} (95 % interval {self.low:{spec}} to {self.high:{spec}}, {self.n} seeds)"


def _needs(results: pd.DataFrame, *columns: str) -> None:
    """Raise InitmemError unless this is a table with these columns."""
    if not isinstance(results, pd.DataFrame):
        raise InitmemError(f"{type(results).__name__} is no table of runs: give rows of initmem.sweep or initmem.read")
    if lacking := [name for name in columns if name not in results]:
        raise InitmemError(f"this table lacks the columns {', '.join(lacking[:3])}: give rows of initmem.sweep or initmem.read")


def recipe(results: pd.DataFrame) -> pd.Series:
    """The fields that all rows share. Raises InitmemError if they differ in more than sigma_w and seed."""
    _needs(results, *RUN_FIELDS, "status")
    if results.empty:
        raise InitmemError("there are no results to measure: sweep some runs first")
    for name in RECIPE_FIELDS:
        if results[name].nunique() > 1:
            values = ", ".join(str(v) for v in results[name].unique()[:4])
            raise InitmemError(f"these runs differ in {name} ({values}): measure one recipe at a time")
    return results.iloc[0][list(RECIPE_FIELDS)]


def by_seed(results: pd.DataFrame, column: str = "test_accuracy") -> pd.DataFrame:
    """One column as a table: a row a seed, a column a σ_w. Seeds that lack a σ_w, or have a diverged run, are left out."""
    recipe(results)
    _needs(results, column)
    if results.duplicated(["seed", "sigma_w"]).any():
        raise InitmemError("these results hold a run twice, perhaps from two copies of the data: keep one row a seed and σ_w")
    ended = results[column].astype(float).where(results["status"] == "finished")
    return results.assign(value=ended).pivot(index="seed", columns="sigma_w", values="value").dropna()


def bootstrap(values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], least: float = -np.inf, most: float = np.inf) -> Estimate:
    """Estimate of a statistic of the mean over seeds.

    `values` is (seeds, ...); `statistic` maps means (resamples, ...) to (resamples,), between `least` and `most`. The
    interval is value ± t·s with t Student's of n − 1 degrees of freedom and s the standard deviation of the statistic over
    resamples, times sqrt(n/(n−1)): for a mean, Student's own interval.
    """
    n = len(values)
    if not n:
        return Estimate(np.nan, np.nan, np.nan, 0)
    value = float(statistic(values.mean(0)[None])[0])
    if n < 2:
        return Estimate(value, np.nan, np.nan, n)
    draws = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    half = stdtrit(n - 1, 0.975) * np.nanstd(statistic(values[draws].mean(1))) * np.sqrt(n / (n - 1))
    return Estimate(value, float(max(least, value - half)), float(min(most, value + half)), n)


def _range(means: np.ndarray) -> np.ndarray:
    return 100 * np.ptp(means, axis=-1)


def mean(results: pd.DataFrame, column: str = "test_accuracy") -> Estimate:
    """Mean over seeds of one column, for rows of a single σ_w."""
    return bootstrap(results[column].astype(float).to_numpy(), lambda means: means)


ACCURACIES = ("test_accuracy", "last_test_accuracy")


def spread(results: pd.DataFrame, column: str = "test_accuracy") -> Estimate:
    """Test-accuracy spread: max − min over σ_w of the seed-mean accuracy, in percentage points.

    `test_accuracy` is the selected predictor's (the paper's metric), `last_test_accuracy` the last checkpoint's.
    """
    if column not in ACCURACIES:
        raise unknown("accuracy", column, ACCURACIES)
    _needs_scales(results)
    return bootstrap(by_seed(results, column).to_numpy(), _range, least=0)


def stack(cells: Sequence[pd.DataFrame], column: str = "test_accuracy") -> np.ndarray:
    """One column of several recipes on the seeds and scales they share: (seeds, recipes, scales), seeds paired.

    Raises InitmemError if they share no seed or fewer than two scales.
    """
    if not len(cells):
        raise InitmemError("there are no recipes to compare: give a list of tables, one a recipe")
    tables = [by_seed(rows, column) for rows in cells]
    seeds = functools.reduce(pd.Index.intersection, [table.index for table in tables])
    scales = functools.reduce(pd.Index.intersection, [table.columns for table in tables])
    if not len(seeds) or len(scales) < 2:
        raise InitmemError(f"these recipes share {len(seeds)} seeds and {len(scales)} σ_w: at least one and two are needed")
    return np.stack([table.loc[seeds, scales].to_numpy() for table in tables], axis=1)


def spread_ratio(results: pd.DataFrame, reference: pd.DataFrame, column: str = "test_accuracy") -> Estimate:
    """Spread of one recipe over that of another, seeds paired."""
    return bootstrap(stack([results, reference], column), lambda means: _ratio(*np.moveaxis(_range(means), -1, 0)), least=0)


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a / np.where(b == 0, np.nan, b)


def curve_distance(results: pd.DataFrame, reference: pd.DataFrame) -> Estimate:
    """Largest difference over σ_w between the seed-mean accuracies of two recipes, in pp, seeds paired."""
    return bootstrap(stack([results, reference]), lambda means: 100 * np.abs(means[..., 0, :] - means[..., 1, :]).max(-1), least=0)


def trend(cells: Sequence[pd.DataFrame]) -> Estimate:
    """Growth of the spread with every doubling of the batch size, in pp: least squares over the recipes."""
    values = stack(cells)
    slope = _slope_on(cells)
    return bootstrap(values, lambda means: slope(_range(means)))


def trend_ratio(cells: Sequence[pd.DataFrame], reference: Sequence[pd.DataFrame]) -> Estimate:
    """`trend` of some recipes over that of others, seeds paired."""
    both, n = stack([*cells, *reference]), len(cells)
    slopes = [_slope_on(part) for part in (cells, reference)]
    return bootstrap(both, lambda means: _ratio(slopes[0](_range(means)[..., :n]), slopes[1](_range(means)[..., n:])))


def _slope_on(cells: Sequence[pd.DataFrame]) -> Callable[[np.ndarray], np.ndarray]:
    x = np.log2([recipe(rows)["batch_size"] for rows in cells])
    if np.ptp(x) == 0:
        raise InitmemError(f"all of these recipes have batches of {2 ** x[0]:.0f}: a trend needs at least two batch sizes")
    centred = x - x.mean()
    return lambda y: (y * centred).sum(-1) / (centred**2).sum()


def clock_order(cells: dict[str, pd.DataFrame]) -> Estimate:
    """Spearman's rank correlation over recipes between the driving clock and the spread: −1, the clock orders them."""
    return rank_correlation(list(cells.values()), [_driving_clock(rows) for rows in cells.values()])


def clock_advantage(cells: dict[str, pd.DataFrame]) -> Estimate:
    """By how much the driving clock orders the spreads better than the number of epochs does, in rank correlation."""
    tables = list(cells.values())
    return rank_advantage(tables, [_driving_clock(rows) for rows in tables], [recipe(rows)["epochs"] for rows in tables])


def rank_advantage(cells: Sequence[pd.DataFrame], x: Sequence[float], rival: Sequence[float]) -> Estimate:
    """By how much x orders the recipes' spreads better than its rival: the rival's rank correlation minus that of x."""
    return bootstrap(stack(cells), lambda means: _spearman(_range(means), np.asarray(rival)) - _spearman(_range(means), np.asarray(x)))


def rank_correlation(cells: Sequence[pd.DataFrame], x: Sequence[float]) -> Estimate:
    """Spearman's rank correlation between one number a recipe and the recipes' spreads."""
    return bootstrap(stack(cells), lambda means: _spearman(_range(means), np.asarray(x)), least=-1, most=1)


def _spearman(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    a, b = rankdata(values, axis=-1), rankdata(x)
    a, b = a - a.mean(-1, keepdims=True), b - b.mean()
    return _ratio((a * b).sum(-1), np.sqrt((a**2).sum(-1) * (b**2).sum()))


def _driving_clock(results: pd.DataFrame) -> float:
    run = run_of(results)
    return getattr(run_clocks(run), active_clock(run))


def run_of(results: pd.DataFrame) -> Run:
    """The base run of rows of one recipe."""
    recipe(results)
    return Run(**results.iloc[0][list(RUN_FIELDS)])


def collapse(cells: Sequence[pd.DataFrame], power: int | None = None) -> Estimate:
    """Share of the variance of seed-mean accuracies over (η, σ_w) that one curve in η/σ_w^power explains.

    The curve is a cubic in log(η/σ_w^power); power 2 for SGD and momentum, 1 for adaptive methods, unless given. The
    recipes must differ in η alone.
    """
    values, fit = _one_curve(cells, power)

    def explained(means: np.ndarray) -> np.ndarray:
        flat = means.reshape(len(means), -1)
        rest = flat - flat @ fit.T
        return 1 - (rest**2).sum(-1) / ((flat - flat.mean(-1, keepdims=True)) ** 2).sum(-1)

    return bootstrap(values, explained, most=1)


def curve_misfit(cells: Sequence[pd.DataFrame], power: float | None = None, degree: int = 3) -> tuple[float, float, float]:
    """How far mean accuracies lie from the curve of `collapse`, in pp: root mean square, largest, and what seeds alone give.

    `degree` is the polynomial's: what a higher one brings nearer was a matter of the curve's shape, not of the scale.

    The last is the root mean square of the means' standard errors, without what a seed has in common everywhere; NaN for
    one seed.
    """
    values, fit = _one_curve(cells, power, degree)
    flat = 100 * values.reshape(len(values), -1)
    rest = flat.mean(0) - fit @ flat.mean(0)
    noise = (flat - flat.mean(1, keepdims=True)).std(0, ddof=1) / len(flat) ** 0.5 if len(flat) > 1 else np.array([np.nan])
    return float((rest**2).mean() ** 0.5), float(np.abs(rest).max()), float((noise**2).mean() ** 0.5)


def _one_curve(cells: Sequence[pd.DataFrame], power: float | None, degree: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (seeds, recipes, scales), and the matrix that projects them, flattened, on a polynomial in log(η/σ_w^power)."""
    values = stack(cells)
    scales = functools.reduce(pd.Index.intersection, [by_seed(rows).columns for rows in cells]).to_numpy(dtype=float)
    if power is None:
        power = 2 if recipe(cells[0])["optimizer"] in ("sgd", "momentum") else 1
    rates = np.array([recipe(rows)["lr"] for rows in cells])
    x = np.log(rates[:, None] / scales**power).ravel()
    design = np.vander((x - x.mean()) / x.std(), degree + 1)
    return values, design @ np.linalg.pinv(design)


def noise_floor(results: pd.DataFrame, column: str = "test_accuracy", permutations: int = 4000) -> tuple[float, float]:
    """The spread that seeds alone would give, in pp (exceeded by 5 % of shuffles), and the permutation p of the real one.

    The floor shuffles what is left of the accuracies without the means of seed and σ_w (scaled for the freedom these
    took); p shuffles the accuracies within every seed: the share of arrangements whose spread reaches the real one, the
    real one among them. All arrangements are counted if there are no more than `permutations`. Both are NaN with one seed.
    """
    return shuffle_test(by_seed(results, column).to_numpy(), permutations)


def shuffle_test(values: np.ndarray, permutations: int = 4000) -> tuple[float, float]:
    """`noise_floor` of accuracies (seeds, scales)."""
    seeds, scales = values.shape
    if seeds < 2 or scales < 2:
        return np.nan, np.nan
    few = math.factorial(scales) ** (seeds - 1) <= permutations

    def shuffled_spreads(table: np.ndarray) -> np.ndarray:
        if few:  # the first seed may stay as it is: to rename the scales changes no spread
            orders = np.array(list(itertools.permutations(range(scales))))
            chosen = orders[np.array(list(itertools.product(range(len(orders)), repeat=seeds - 1)))]
            return _range((table[0] + np.take_along_axis(table[None, 1:], chosen, 2).sum(1)) / seeds)
        copies = np.broadcast_to(table, (permutations, seeds, scales))
        return _range(np.random.default_rng(0).permuted(copies, axis=2).mean(1))

    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    rest *= np.sqrt(seeds * scales / ((seeds - 1) * (scales - 1)))
    reached = shuffled_spreads(values) >= _range(values.mean(0)[None])[0] - 1e-9
    p = reached.mean() if few else (reached.sum() + 1) / (permutations + 1)
    return float(np.quantile(shuffled_spreads(rest), 0.95)), float(p)


def radial_memory(results: pd.DataFrame) -> Estimate:
    """Slope of log‖W_T‖ against log‖W_0‖ over σ_w: 1 = the initial norm is remembered, 0 = forgotten."""
    _needs_scales(results)
    _needs(results, "norm")
    norms = results.assign(first=np.log(results["norm"].str[0]), last=np.log(results["norm"].str[-1]))
    last = by_seed(norms, "last")
    first, last = by_seed(norms, "first").loc[last.index].to_numpy(), last.to_numpy()
    centred = first - first.mean(1, keepdims=True)
    slopes = (centred * last).sum(1) / (centred**2).sum(1)  # least squares, seed by seed
    return bootstrap(slopes, lambda means: means)


def interpolation_epoch(train_accuracy: np.ndarray) -> int | None:
    """τ_interp: the first epoch (from 1) with training accuracy of at least 99.5 %; None if there is none."""
    reached = np.flatnonzero(np.asarray(train_accuracy) >= INTERPOLATED - 1e-7)
    return int(reached[0]) + 1 if len(reached) else None


def interpolated_share(results: pd.DataFrame) -> Estimate:
    """Share of runs that reach τ_interp."""
    _needs(results, "train_accuracy")
    reached = results.assign(reached=[interpolation_epoch(curve) is not None for curve in results["train_accuracy"]])
    return bootstrap(by_seed(reached, "reached").mean(axis=1).to_numpy(), lambda means: means, least=0, most=1)


def interpolated_at_largest(results: pd.DataFrame) -> Estimate:
    """Share of the runs at the largest σ_w that reach τ_interp."""
    _needs(results, "sigma_w", "train_accuracy")
    largest = results[results["sigma_w"] == results["sigma_w"].max()]
    return bootstrap(np.array([interpolation_epoch(c) is not None for c in largest["train_accuracy"]], float), lambda means: means, least=0, most=1)


def repair_gap(row: pd.Series) -> float:
    """Validation accuracy at the final checkpoint minus that at τ_interp, in pp; NaN if the run never interpolates."""
    epoch = interpolation_epoch(row["train_accuracy"])
    return np.nan if epoch is None else 100 * float(row["val_accuracy"][-1] - row["val_accuracy"][epoch - 1])


def turned(results: pd.DataFrame) -> np.ndarray:
    """How far each run's kernels have turned at its selected epoch: the median angle to their initial selves, in degrees."""
    _needs(results, "layers", "layer_cosines", "selected_epoch")
    cosines = [
        np.median(np.reshape(row["layer_cosines"], (-1, len(row["layers"])))[row["selected_epoch"]]) for _, row in results.iterrows()
    ]
    return np.degrees(np.arccos(np.clip(cosines, -1, 1)))


def disagreement(first: bytes, second: bytes) -> float:
    """Share of test images that two networks classify differently: memory in function space."""
    a, b = np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8)
    if len(a) != len(b) or not len(a):
        raise InitmemError(f"predictions of {len(a)} and {len(b)} images cannot be compared: use runs on one test set")
    return float((a != b).mean())


def gradient_path(row: pd.Series) -> float:
    """Σ ‖W‖²‖g‖² of the convolutions over the steps of a run of plain SGD, from their norms alone.

    By the norm equation ‖W_{k+1}‖⁴ − ‖W_k‖⁴ ≈ 2η²‖W_k‖²‖g_k‖², so the sum is (‖W_T‖⁴ − ‖W_0‖⁴)/(2η²): no gradient need be
    stored. Rescaling the convolutions leaves it unchanged. Raises InitmemError for other optimizers and for weight decay,
    which pull on the norm as well.
    """
    if row["optimizer"] != "sgd" or row["weight_decay"]:
        raise InitmemError(f"the norm equation is for plain SGD without weight decay, not {row['optimizer']} with λ = {row['weight_decay']:g}")
    fourth = convolution_norm(row) ** 4
    return float((fourth[-1] - fourth[0]) / (2 * row["lr"] ** 2))


def convolution_norm(row: pd.Series) -> np.ndarray:
    """Frobenius norm of all convolutions together, without the head, per epoch from initialization on: (epochs + 1,)."""
    norms = np.asarray(row["layer_norms"], dtype=np.float64).reshape(-1, len(row["layers"]))
    return np.sqrt((norms[:, :-1] ** 2).sum(1))  # the head comes last


def without_head(results: pd.DataFrame) -> pd.DataFrame:
    """The rows with `convolution_norm` in place of `norm`: no BatchNorm follows the head, so the norm equation leaves it out."""
    return results.assign(norm=[convolution_norm(row) for _, row in results.iterrows()])


def solve_norm_equation(results: pd.DataFrame, reference: pd.Series) -> np.ndarray:
    """`convolution_norm` as theory foretells it for runs of SGD that make the same number of steps: (runs, epochs + 1).

    Under BatchNorm the gradient is orthogonal to the kernels and ‖W‖‖g‖ = G depends on their direction alone, so a step
    gives ‖W‖² ← (1 − ηλ)²‖W‖² + η²G²/‖W‖². G is read off one other run, `reference`, as a function of the way that the
    direction has come, s = Σ η/‖W‖² (beyond its end: its last value). No constant is fitted.
    """
    gradient_path(reference)  # raises where the reference is no plain SGD
    for name in ("optimizer", "epochs", "train_size", "batch_size"):
        if results[name].nunique() != 1:
            raise InitmemError(f"these runs differ in {name}: solve the norm equation for one at a time")
    run = Run(**results.iloc[0][list(RUN_FIELDS)])
    if run.optimizer != "sgd":
        raise InitmemError(f"the norm equation is for SGD, not {run.optimizer}")
    lr, decay = results["lr"].to_numpy(float), results["weight_decay"].to_numpy(float)
    norms = np.stack([convolution_norm(row) for _, row in results.iterrows()])
    base, steps = convolution_norm(reference) ** 2, int(reference["train_size"]) // int(reference["batch_size"])
    squared_g = np.diff(base**2) / (2 * reference["lr"] ** 2 * steps)  # by epoch, between the two norms that it lies between
    pace = reference["lr"] * steps / ((base[1:] + base[:-1]) / 2)
    way = np.cumsum(pace) - pace / 2
    squared, s, foretold = norms[:, 0] ** 2, np.zeros(len(norms)), [norms[:, 0]]
    for _ in range(run.epochs):
        for _ in range(run.steps_per_epoch):
            s, squared = (
                s + lr / squared,
                (1 - lr * decay) ** 2 * squared + lr**2 * np.interp(s, way, squared_g) / squared,
            )
        foretold.append(np.sqrt(squared))
    return np.stack(foretold, axis=1)


def disagreement_over(results: pd.DataFrame, what: str) -> Estimate:
    """Disagreement in % of test images between networks of one recipe that differ in `what` alone, over seeds.

    `sigma_w`: the smallest against the largest scale, at each seed. `seed`: every two seeds, mean over the scales, with
    the jackknife's interval (none for two seeds); seeds also differ in their training images.
    """
    table = by_seed(results.assign(row=range(len(results))), "row").astype(int)
    answers = np.array([np.frombuffer(row, np.uint8) for row in results["predictions"]])[table.to_numpy()]  # (seeds, scales, images)
    if what == "sigma_w":
        return bootstrap(100 * (answers[:, 0] != answers[:, -1]).mean(-1), lambda means: means)
    n = len(table)
    if n < 2:
        raise InitmemError("disagreement between seeds needs at least two seeds with every σ_w")
    pairs = 100 * np.array([(answers[seed] != answers).mean((1, 2)) for seed in range(n)])  # seeds × seeds
    value = pairs.sum() / (n * (n - 1))
    if n < 3:
        return Estimate(value, np.nan, np.nan, n)
    without = [(pairs.sum() - 2 * pairs[seed].sum()) / ((n - 1) * (n - 2)) for seed in range(n)]
    # Pairs share seeds, so that they are fewer than they seem: the jackknife leaves out a seed with all its pairs.
    half = stdtrit(n - 1, 0.975) * ((n - 1) / n * ((np.array(without) - np.mean(without)) ** 2).sum()) ** 0.5
    return Estimate(value, value - half, value + half, n)


def disagreement_between(first: pd.DataFrame, second: pd.DataFrame) -> Estimate:
    """Disagreement in % of test images between two recipes at equal seed and σ_w, mean over σ_w, over seeds."""
    both = first.merge(second, on=["seed", "sigma_w"])
    share = [100 * disagreement(a, b) for a, b in zip(both["predictions_x"], both["predictions_y"], strict=True)]
    return bootstrap(both.assign(share=share).groupby("seed")["share"].mean().to_numpy(), lambda means: means)


def disagreement_map(results: pd.DataFrame) -> pd.DataFrame:
    """Mean disagreement over seeds, in % of test images, between every two scales of one recipe: scales × scales."""
    recipe(results)
    tables = []
    for _, rows in results.groupby("seed"):
        predictions = np.stack([np.frombuffer(p, np.uint8) for p in rows.sort_values("sigma_w")["predictions"]])
        tables.append(100 * (predictions[:, None] != predictions[None]).mean(-1))
    scales = sorted(results["sigma_w"].unique())
    return pd.DataFrame(np.mean([t for t in tables if len(t) == len(scales)], axis=0), index=scales, columns=scales)


def effective_lr(row: pd.Series) -> np.ndarray:
    """Effective learning rate per epoch from initialization on, (epochs + 1,).

    η/‖W‖² for SGD and momentum, whose steps shrink with the gradient; η/‖W‖ for Adam, AdamW and Muon, whose do not.
    """
    power = 2 if row["optimizer"] in ("sgd", "momentum") else 1
    return row["lr"] / np.asarray(row["norm"], dtype=np.float64) ** power


def table(results: pd.DataFrame) -> pd.DataFrame:
    """A row a σ_w: accuracies in %, norms, interpolation, with n. What the command and the chapters print."""
    recipe(results)
    rows = []
    for sigma_w, group in results.groupby("sigma_w"):
        selected, last = mean(group), mean(group, "last_test_accuracy")
        epochs = [interpolation_epoch(curve) for curve in group["train_accuracy"]]
        reached = [epoch for epoch in epochs if epoch is not None]
        rows.append(
            {
                "σ_w": sigma_w,
                "test accuracy (%)": 100 * selected.value,
                "low": 100 * selected.low,
                "high": 100 * selected.high,
                "last (%)": 100 * last.value,
                "train (%)": 100 * group["train_accuracy"].str[-1].mean(),
                "interpolate": f"{len(reached)}/{len(group)}",
                "τ_interp": float(np.median(reached)) if reached else np.nan,
                "‖W_0‖": group["norm"].str[0].mean(),
                "‖W_T‖": group["norm"].str[-1].mean(),
                "diverged": int((group["status"] == "diverged").sum()),
                "n": len(group),
            }
        )
    return pd.DataFrame(rows)


def _needs_scales(results: pd.DataFrame) -> None:
    recipe(results)
    if results["sigma_w"].nunique() < 2:
        raise InitmemError("memory of σ_w cannot be measured at a single σ_w: give at least two")
