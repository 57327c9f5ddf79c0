import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from initmem.clocks import PAPER_REGIMES, active_clock, clocks, matched_lr, paper_clocks, run_clocks
from initmem.config import InitmemError, preset

rates = st.floats(1e-5, 1.0)


@given(lr=rates, decay=st.floats(0, 0.1), batch=st.integers(2, 64), epochs=st.integers(1, 8))
def test_a_runs_clocks_are_the_sums_over_its_steps(lr, decay, batch, epochs):
    run = preset("digits").replace(lr=lr, weight_decay=decay, batch_size=batch, epochs=epochs)
    steps = epochs * (300 // batch)
    t_sgd = t_l2 = t_adapt = 0.0
    for _ in range(steps):
        t_sgd, t_l2, t_adapt = t_sgd + lr**2 / batch, t_l2 + decay * lr, t_adapt + lr
    ours = run_clocks(run)
    assert ours.steps == steps
    assert [ours.t_sgd, ours.t_l2, ours.t_adapt] == pytest.approx([t_sgd, t_l2, t_adapt], rel=1e-9)
    assert vars(ours) == pytest.approx(vars(clocks(np.full(steps, lr), batch, decay)), rel=1e-9)


def test_schedules_that_change():
    ours = clocks([[0.1, 0.2], [0.3, 0.4]], batch_size=2, weight_decay=0.5)
    assert ours.t_sgd == pytest.approx(0.15) and ours.t_l2 == pytest.approx(0.5) and ours.t_adapt == pytest.approx(1.0)


def test_the_papers_figures():
    assert paper_clocks("SGD, 300 epochs").t_sgd == pytest.approx(7.3e-4, rel=0.01)
    assert paper_clocks("SGD, 5,000 epochs").t_sgd == pytest.approx(1.2e-2, rel=0.02)
    assert paper_clocks("SGD, 300 epochs").t_adapt == pytest.approx(93.75)
    assert all(paper_clocks(name).steps > 0 for name in PAPER_REGIMES)


@given(target=st.floats(1e-4, 100))
def test_matched_rate_brings_the_clock_to_the_target(target):
    run = preset("laptop").replace(weight_decay=0.01)
    for clock in ("t_sgd", "t_l2", "t_adapt"):
        matched = run.replace(lr=matched_lr(run, clock, target))
        assert getattr(run_clocks(matched), clock) == pytest.approx(target)


def test_matching_a_clock_that_stands_still():
    with pytest.raises(InitmemError, match="weight decay"):
        matched_lr(preset("digits"), "t_l2", 1.0)


def test_active_clock():
    base = preset("digits")
    assert active_clock(base) == "t_sgd"
    assert active_clock(base.replace(weight_decay=0.1)) == "t_l2"
    assert active_clock(base.replace(optimizer="muon")) == "t_adapt"


def test_a_clock_that_cannot_be_matched_is_named():
    run = preset("digits")
    for clock, target, says in [("t_sdg", 1.0, "did you mean 't_sgd'"), ("t_sgd", -1.0, "target = -1.0"), ("t_sgd", float("nan"), "target = nan"), ("t_l2", 1.0, "weight decay")]:
        with pytest.raises(InitmemError, match=says):
            matched_lr(run, clock, target)
    with pytest.raises(InitmemError, match="unknown regime"):
        paper_clocks("SGD, 30 epochs")
