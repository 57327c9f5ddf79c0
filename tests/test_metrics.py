"""Metrics on cases whose answers are known."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import initmem
from initmem import metrics
from initmem.config import InitmemError, grid, preset


def table(accuracy, norms=None, **fields):
    """Rows for a matrix of accuracies (seeds, scales); norms give (first, last) for each."""
    seeds, scales = np.shape(accuracy)
    runs = grid(preset("digits").replace(**fields), seed=range(seeds), sigma_w=0.5 * np.arange(1, scales + 1))
    rows = []
    for run, value in zip(runs, np.ravel(accuracy), strict=True):
        norm = np.array(norms(run.sigma_w) if norms else [1.0, 1.0])
        rows.append(
            dict(run.model_dump(), test_accuracy=value, last_test_accuracy=value, norm=norm, status="finished")
            | dict(train_accuracy=np.array([0.5, 0.995, 1.0]), val_accuracy=np.array([0.1, 0.6, 0.75]))
        )
    return pd.DataFrame(rows)


def test_spread_is_max_minus_min_of_seed_means_in_points():
    results = table([[0.9, 0.8, 0.7], [0.9, 0.6, 0.7]])
    assert metrics.spread(results).value == pytest.approx(20.0)
    assert metrics.spread(results).n == 2


def test_one_seed_has_no_interval():
    estimate = metrics.spread(table([[0.9, 0.7]]))
    assert estimate.value == pytest.approx(20) and np.isnan(estimate.low) and estimate.n == 1
    assert f"{estimate:.1f}" == "20.0 (n = 1, no interval)"


@given(shift=st.floats(-0.1, 0.1), noise=st.lists(st.floats(-0.01, 0.01), min_size=12, max_size=12))
def test_spread_ignores_a_common_shift_and_lies_in_its_interval(shift, noise):
    accuracy = np.array([0.6, 0.7, 0.8]) + np.reshape(noise, (4, 3))
    estimate = metrics.spread(table(accuracy))
    shifted = metrics.spread(table(accuracy + shift))
    assert shifted.value == pytest.approx(estimate.value, abs=1e-9)
    assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_interval_covers_about_as_often_as_it_says(seeds, monkeypatch):
    """Differences of two scales, normal noise: a 95 % interval should miss a true 10 pp in about 5 %, with few seeds too."""
    monkeypatch.setattr(metrics, "RESAMPLES", 1000)
    rng, missed = np.random.default_rng(1), 0
    for _ in range(200):
        values = np.array([0.6, 0.7]) + rng.normal(0, 0.01, (seeds, 2))
        estimate = metrics.bootstrap(values, metrics._range)
        missed += not estimate.low <= 10 <= estimate.high
    assert missed <= 20, "twice the nominal rate and more would be too narrow"


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_interval_of_a_mean_is_students(seeds):
    values = np.random.default_rng(3).normal(size=seeds)
    estimate = metrics.bootstrap(values, lambda means: means)
    low, high = scipy.stats.t.interval(0.95, seeds - 1, values.mean(), scipy.stats.sem(values))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=0.05, abs=0.05 * (high - low))


def test_interval_stays_within_what_can_be():
    assert metrics.bootstrap(np.array([[0.5, 0.5], [0.5, 0.9], [0.9, 0.5]]), metrics._range, least=0).low == 0


def test_noise_floor_tells_signal_from_noise():
    rng = np.random.default_rng(0)
    noise = 0.8 + rng.normal(0, 0.01, (8, 5))
    floor, p = metrics.noise_floor(table(noise))
    assert p > 0.05
    with_signal, p = metrics.noise_floor(table(noise + np.linspace(0, 0.1, 5)))
    assert p < 0.001
    assert with_signal == pytest.approx(floor), "a real effect of σ_w does not raise what seeds alone would give"
    assert all(np.isnan(metrics.noise_floor(table([[0.5, 0.6]]))))


def test_noise_floor_is_exceeded_by_one_in_twenty():
    rng, exceeded = np.random.default_rng(2), 0
    for _ in range(200):
        results = table(0.8 + rng.normal(0, 0.01, (5, 4)))
        exceeded += metrics.spread(results).value > metrics.noise_floor(results, permutations=400)[0]
    assert 2 <= exceeded <= 24


def test_p_counts_every_arrangement_where_there_are_few():
    remembered = np.array([[0.9, 0.8, 0.75, 0.6]] * 3)  # both further seeds have both extremes where the first has them: (1/12)²
    assert metrics.noise_floor(table(remembered))[1] == pytest.approx(1 / 144)
    assert metrics.noise_floor(table(remembered[:2, :2]))[1] == pytest.approx(1 / 2)
    assert metrics.noise_floor(table(np.full((3, 3), 0.5)))[1] == 1
    assert metrics.noise_floor(table(np.tile(np.linspace(0.5, 0.9, 7), (10, 1))))[1] == pytest.approx(1 / 4001), "the real arrangement counts"


def test_the_angle_is_that_of_the_selected_epoch():
    results = table([[0.5, 0.6]]).assign(selected_epoch=[1, 2])
    cosines = np.cos(np.radians([[0, 0, 0], [10, 20, 30], [40, 60, 80]])).ravel()
    results = results.assign(layers=[["a", "b", "c"]] * 2, layer_cosines=[cosines] * 2)
    assert metrics.turned(results) == pytest.approx([20, 60])


def test_a_more_flexible_curve_mends_a_misfit_of_shape():
    scales, rates = np.array([0.5, 1.0, 1.5]), [0.003, 0.01, 0.03, 0.1]
    cells = [table([0.7 + 0.1 * np.sin(1.5 * np.log(rate / scales**2))] * 2, lr=rate) for rate in rates]
    cubic, quintic = (metrics.curve_misfit(cells, degree=degree)[0] for degree in (3, 5))
    assert quintic < cubic / 2


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_radial_memory_is_the_exponent(slope):
    results = table(np.full((3, 4), 0.5), norms=lambda s: [10 * s, 7 * s**slope])
    assert metrics.radial_memory(results).value == pytest.approx(slope, abs=1e-9)


def test_interpolation_epoch_and_repair_gap():
    assert metrics.interpolation_epoch(np.array([0.5, 0.995, 0.9])) == 2
    assert metrics.interpolation_epoch(np.float32([0.9949, 0.995])) == 2, "float32 rounding does not postpone it"
    assert metrics.interpolation_epoch(np.array([0.5, 0.99])) is None
    row = table([[0.5, 0.6]]).iloc[0]
    assert metrics.repair_gap(row) == pytest.approx(15.0)
    row["train_accuracy"] = np.array([0.1, 0.2, 0.3])
    assert np.isnan(metrics.repair_gap(row))


def test_ratio_of_spreads_pairs_seeds():
    sgd, adam = table([[0.9, 0.7], [0.9, 0.7]]), table([[0.9, 0.85], [0.9, 0.85]], optimizer="adam")
    assert metrics.spread_ratio(adam, sgd).value == pytest.approx(0.25)


def test_disagreement():
    assert metrics.disagreement(bytes([0, 1, 2, 3]), bytes([0, 1, 2, 9])) == 0.25
    with pytest.raises(InitmemError, match="4 and 3 images"):
        metrics.disagreement(bytes(4), bytes(3))


def test_effective_rate_falls_with_the_square_of_the_norm_for_sgd_alone():
    sgd = table([[0.5, 0.5]], norms=lambda s: [2.0, 4.0]).iloc[0]
    assert metrics.effective_lr(sgd) == pytest.approx([0.003 / 4, 0.003 / 16])
    adam = table([[0.5, 0.5]], norms=lambda s: [2.0, 4.0], optimizer="adam").iloc[0]
    assert metrics.effective_lr(adam) == pytest.approx([0.003 / 2, 0.003 / 4])


def test_mixed_recipes_and_single_scales_are_refused():
    mixed = pd.concat([table([[0.5, 0.6]]), table([[0.5, 0.6]], optimizer="adam")])
    with pytest.raises(InitmemError, match="differ in optimizer"):
        metrics.spread(mixed)
    with pytest.raises(InitmemError, match="at least two"):
        metrics.spread(table([[0.5]]))
    with pytest.raises(InitmemError, match="no results"):
        metrics.table(table([[0.5, 0.6]]).head(0))


ROWS = table([[0.5, 0.6]])


@pytest.mark.parametrize(("measure", "says"), [
    (lambda: metrics.spread(None), "NoneType is no table of runs"),
    (lambda: metrics.spread({"sgd": ROWS}), "dict is no table of runs"),
    (lambda: metrics.noise_floor(None), "NoneType is no table of runs"),
    (lambda: metrics.turned(None), "NoneType is no table of runs"),
    (lambda: metrics.interpolated_at_largest(None), "NoneType is no table of runs"),
    (lambda: metrics.spread_ratio(ROWS, None), "NoneType is no table of runs"),
    (lambda: metrics.spread(ROWS.drop(columns="test_accuracy")), "lacks the columns test_accuracy"),
    (lambda: metrics.radial_memory(ROWS.drop(columns="norm")), "lacks the columns norm"),
    (lambda: metrics.interpolated_share(ROWS.drop(columns="train_accuracy")), "lacks the columns train_accuracy"),
    (lambda: metrics.by_seed(ROWS, "test_acuracy"), "lacks the columns test_acuracy"),
    (lambda: metrics.trend([]), "no recipes to compare"),
    (lambda: metrics.collapse([]), "no recipes to compare"),
    (lambda: metrics.rank_correlation([], []), "no recipes to compare"),
    (lambda: metrics.trend([ROWS]), "at least two batch sizes"),
    (lambda: metrics.trend([ROWS, ROWS]), "at least two batch sizes"),
    (lambda: initmem.grid("digits", lr=[0.1]), "'digits' is no run to vary"),
    (lambda: initmem.run_clocks("digits"), "str is no run"),
])  # fmt: skip
def test_what_is_no_table_of_runs_is_named(measure, says):
    with pytest.raises(InitmemError, match=says):
        measure()


def test_recipes_are_compared_on_the_seeds_and_scales_they_share():
    whole, less = table([[0.9, 0.8, 0.5], [0.9, 0.8, 0.5]]), table([[0.9, 0.85], [0.9, 0.85], [0.1, 0.1]], optimizer="adam")
    assert metrics.stack([whole, less]).shape == (2, 2, 2)
    assert metrics.spread_ratio(less, whole).value == pytest.approx(0.5)
    other = less.assign(sigma_w=less["sigma_w"] + 7)
    with pytest.raises(InitmemError, match="share 2 seeds and 0 σ_w"):
        metrics.spread_ratio(other, whole)
    level = table([[0.9, 0.9]])
    assert np.isnan(metrics.spread_ratio(whole.assign(sigma_w=whole["sigma_w"]), level).value), "no ratio to nothing"


def test_trend_is_the_slope_over_doublings():
    cells = [table([[0.9, 0.9 - 0.02 * i]] * 3, batch_size=4 * 2**i) for i in range(1, 5)]
    assert metrics.trend(cells).value == pytest.approx(2.0)
    flat = [table([[0.9, 0.85]] * 3, batch_size=4 * 2**i, lr=0.1) for i in range(1, 5)]
    assert metrics.trend_ratio(flat, cells).value == pytest.approx(0.0, abs=1e-9)


def test_rank_correlation_against_scipy():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(3)
    spreads, x = rng.uniform(0, 0.2, 7), rng.normal(size=7)
    cells = [table([[0.9, 0.9 - s]] * 2, lr=0.01 * (i + 1)) for i, s in enumerate(spreads)]
    assert metrics.rank_correlation(cells, x).value == pytest.approx(spearmanr(spreads, x).statistic)


def test_collapse_is_whole_for_one_curve_and_not_for_another():
    rates, scales = 0.001 * 3.0 ** np.arange(5), 0.5 * np.arange(1, 5)
    curve = lambda x: 0.8 - 0.01 * (x + 3) ** 2 + 0.002 * x  # noqa: E731
    cells = [table([curve(np.log10(rate / scales**2))] * 2, lr=rate) for rate in rates]
    assert metrics.collapse(cells).value == pytest.approx(1.0)
    assert metrics.collapse(cells, power=0).value < 0.9
    adam = [table([curve(np.log10(rate / scales))] * 2, lr=rate, optimizer="adam") for rate in rates]
    assert metrics.collapse(adam).value == pytest.approx(1.0) and metrics.collapse(adam, power=2).value < 0.99


def test_fit_at_the_largest_scale_ignores_the_others():
    results = table([[0.9, 0.8]] * 2)
    results["train_accuracy"] = [np.array([0.5, 1.0 if s < 1 else 0.9]) for s in results["sigma_w"]]
    assert metrics.interpolated_at_largest(results).value == 0 and metrics.interpolated_share(results).value == 0.5
    results.at[0, "train_accuracy"] = np.array([0.5, 0.9])
    few = metrics.interpolated_share(results)
    assert (few.low, few.high) == (0, 1), "a share lies between 0 and 1, whatever the interval around few seeds"


def test_distance_of_curves_is_the_largest_difference():
    a, b = table([[0.9, 0.8, 0.7]] * 3), table([[0.9, 0.83, 0.71]] * 3, precision="bf16")
    assert metrics.curve_distance(a, b).value == pytest.approx(3.0)


def test_disagreement_over_scale_and_over_seed():
    results = table([[0.5, 0.5, 0.5]] * 2)
    classes = {(0, 0.5): [0, 0, 0, 0], (0, 1.0): [0, 0, 0, 1], (0, 1.5): [0, 0, 1, 1], (1, 0.5): [2, 2, 2, 2], (1, 1.0): [2, 0, 2, 2], (1, 1.5): [2, 2, 2, 2]}
    results["predictions"] = [bytes(classes[row["seed"], row["sigma_w"]]) for _, row in results.iterrows()]
    assert metrics.disagreement_over(results, "sigma_w").value == pytest.approx(25.0), "2 of 4 images at one seed, none at the other"
    assert metrics.disagreement_over(results, "seed").value == pytest.approx(100 * (1 + 0.75 + 1) / 3)
    between = metrics.disagreement_map(results)
    assert between.loc[0.5, 1.5] == pytest.approx(25.0) and between.loc[0.5, 1.0] == pytest.approx(25.0) and between.loc[1.0, 1.0] == 0
    other = results.assign(predictions=[bytes([9, *p[1:]]) for p in results["predictions"]], precision="bf16")
    assert metrics.disagreement_between(results, other).value == pytest.approx(25.0), "one image of four at every seed and scale"
    with pytest.raises(InitmemError, match="two seeds"):
        metrics.disagreement_over(results[results["seed"] == 0], "seed")


def test_the_path_of_gradients_comes_from_the_norms_alone():
    """Steps orthogonal to the kernel: ‖W‖² grows by η²‖g‖², and the sum of ‖W‖²‖g‖² must come back."""
    rate, head, squares, path = 0.1, 3.0, [4.0], 0.0
    for gradient in (0.5, 0.4, 0.3):
        path += squares[-1] * gradient**2
        squares.append(squares[-1] + rate**2 * gradient**2)
    norms = np.array([[np.sqrt(square), head] for square in squares])
    row = table([[0.5, 0.6]], lr=rate).iloc[0].to_dict() | dict(layer_norms=norms.ravel(), layers=["body", "head"])
    assert metrics.gradient_path(pd.Series(row)) == pytest.approx(path, rel=1e-3), "whatever the head is"
    with pytest.raises(InitmemError, match="plain SGD"):
        metrics.gradient_path(pd.Series(row | dict(optimizer="adam")))


def test_the_norm_equation_is_solved_from_another_runs_gradients():
    """With constant G = ‖W‖‖g‖, ‖W‖⁴ grows by 2η²G² a step; decay alone is geometric; both end in a balance."""

    def run(first, growth, epochs=50, **changes):
        norms = (first**4 + growth * np.arange(epochs + 1)) ** 0.25
        rows = table([[0.5, 0.6]], epochs=epochs, train_size=32, batch_size=8, **changes)
        return rows.assign(layers=[["body", "head"]] * 2, layer_norms=[np.stack([norms, norms * 0 + 9], 1).ravel()] * 2)

    rate, g, steps = 0.1, 8.0, 4
    reference = run(2.0, 2 * rate**2 * g**2 * steps, lr=rate).iloc[0]
    [same, _] = metrics.solve_norm_equation(run(2.0, 0, lr=rate), reference)
    np.testing.assert_allclose(same, metrics.convolution_norm(reference), rtol=0.02)
    [faster, _] = metrics.solve_norm_equation(run(3.0, 0, lr=0.02), reference)
    np.testing.assert_allclose(faster[-1] ** 4, 3.0**4 + 2 * 0.02**2 * g**2 * steps * 50, rtol=1e-3)
    still = run(2.0, 1e-12, lr=rate).iloc[0]
    [decayed, _] = metrics.solve_norm_equation(run(5.0, 0, lr=0.05, weight_decay=0.01), still)
    np.testing.assert_allclose(decayed, 5 * (1 - 0.05 * 0.01) ** (steps * np.arange(51)), rtol=1e-6)
    for start in (1.0, 30.0):
        [balanced, _] = metrics.solve_norm_equation(run(start, 0, epochs=600, lr=0.05, weight_decay=0.1), reference)
        assert balanced[-1] == pytest.approx((0.05 * g**2 / (2 * 0.1)) ** 0.25, rel=0.01), "from whatever norm it started"
    with pytest.raises(InitmemError, match="for SGD, not adam"):
        metrics.solve_norm_equation(run(2.0, 0, optimizer="adam"), reference)
    with pytest.raises(InitmemError, match="plain SGD"):
        metrics.solve_norm_equation(run(2.0, 0), run(2.0, 0, weight_decay=0.1).iloc[0])


def test_a_diverged_run_costs_its_seed_and_no_metric_its_sense():
    results = table([[0.9, 0.8], [0.9, 0.7], [0.9, 0.7]], norms=lambda s: [s, s])
    results.loc[0, "status"], results.at[0, "norm"] = "diverged", np.array([1.0, np.nan])
    assert metrics.spread(results).value == pytest.approx(20.0) and metrics.spread(results).n == 2
    assert metrics.radial_memory(results).value == pytest.approx(1.0) and metrics.radial_memory(results).n == 2
    nothing = results.assign(status="diverged")
    assert metrics.spread(nothing).n == metrics.radial_memory(nothing).n == 0
    assert f"{metrics.spread(nothing):.1f}" == metrics.spread(nothing).words() == "not measurable (no seed has all its runs)"
    assert np.isnan(metrics.noise_floor(nothing)[0])


def test_tables_that_are_no_results_are_refused_in_a_sentence():
    results = table([[0.5, 0.6]])
    with pytest.raises(InitmemError, match="hold a run twice"):
        metrics.spread(pd.concat([results, results]))
    with pytest.raises(InitmemError, match="unknown accuracy 'test_acc'.*did you mean 'test_accuracy'"):
        metrics.spread(results, "test_acc")
    with pytest.raises(InitmemError, match="lacks the columns"):
        metrics.spread(pd.DataFrame({"a": [1]}))
