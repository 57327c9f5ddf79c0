"""Metrics on cases whose answers are known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_interval_covers_about_as_often_as_it_says():
    """Differences of two scales, normal noise, five seeds: a 95 % interval should miss a true 10 pp in about 5 %."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(200):
        values = np.array([0.6, 0.7]) + rng.normal(0, 0.01, (5, 2))
        estimate = metrics.bootstrap(values, metrics._range)
        missed += not estimate.low <= 10 <= estimate.high
    assert missed <= 24, "twice the nominal rate and more would be too narrow"


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
