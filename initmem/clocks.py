"""The forgetting clocks: sums over optimizer steps that say how much forgetting a recipe has had time for.

They organize linear and scale-invariant arguments; for networks with BatchNorm they are no theorem (the paper, and we).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from initmem.config import InitmemError, Run, unknown

CLOCKS = ("t_sgd", "t_l2", "t_adapt")


@dataclass(frozen=True)
class Clocks:
    """The three clocks of one recipe, and the steps they ran for."""

    steps: int
    t_sgd: float
    """(1/b) Σ η_k²: finite-step minibatch noise."""
    t_l2: float
    """λ Σ η_k: explicit norm decay."""
    t_adapt: float
    """Σ η_k: adaptive preconditioning; for plain SGD the same sum is only the time of the gradient flow."""


def clocks(learning_rates: ArrayLike, batch_size: int, weight_decay: float = 0.0) -> Clocks:
    """The clocks of a schedule of learning rates η_k, one per optimizer step: any shape, read flat."""
    rates = np.asarray(learning_rates, dtype=np.float64).ravel()
    return Clocks(len(rates), float((rates**2).sum() / batch_size), float(weight_decay * rates.sum()), float(rates.sum()))


def run_clocks(run: Run) -> Clocks:
    """The clocks of a run, whose learning rate is constant. Raises InitmemError for anything but a run."""
    if not isinstance(run, Run):
        raise InitmemError(f"{type(run).__name__} is no run: give one, such as initmem.preset('digits') or metrics.run_of(rows)")
    steps = run.epochs * run.steps_per_epoch
    return Clocks(steps, run.lr**2 * steps / run.batch_size, run.weight_decay * run.lr * steps, run.lr * steps)


def active_clock(run: Run) -> str:
    """The clock that drives a recipe's forgetting: T_adapt for adaptive methods, T_L2 for SGD with decay, else T_SGD."""
    if run.optimizer in ("adam", "adamw", "muon"):
        return "t_adapt"
    return "t_l2" if run.weight_decay else "t_sgd"


def matched_lr(run: Run, clock: str, target: float) -> float:
    """The learning rate that brings one clock of a run (`t_sgd`, `t_l2` or `t_adapt`) to a target, all else unchanged.

    Raises InitmemError for an unknown clock, a target that is not positive, and T_L2 of a run without weight decay.
    """
    if clock not in CLOCKS:
        raise unknown("clock", clock, CLOCKS)
    if not 0 < target < np.inf:
        raise InitmemError(f"target = {target!r} is not allowed: give a finite number above 0")
    now = getattr(run_clocks(run), clock)
    if not now > 0:
        raise InitmemError(f"{clock} is 0 at every learning rate of this run: give it a weight decay first")
    return run.lr * (target / now) ** (0.5 if clock == "t_sgd" else 1.0)


_PAPER_STEPS_PER_EPOCH = 40_000 / 128
# The paper's regimes at b = 128 (ResNet-9). Its adaptive learning rates are not known to us: 1e-3 is our assumption.
PAPER_REGIMES = {
    "SGD, 300 epochs": dict(lr=1e-3, epochs=300, weight_decay=0.0, clock="t_sgd"),
    "SGD, 5,000 epochs": dict(lr=1e-3, epochs=5000, weight_decay=0.0, clock="t_sgd"),
    "SGD with L2": dict(lr=1e-2, epochs=300, weight_decay=1e-2, clock="t_l2"),
    "adaptive, if η = 1e-3": dict(lr=1e-3, epochs=300, weight_decay=0.0, clock="t_adapt"),
}


def paper_clocks(regime: str) -> Clocks:
    """The clocks of one of PAPER_REGIMES, with 312.5 steps an epoch."""
    if regime not in PAPER_REGIMES:
        raise unknown("regime", regime, PAPER_REGIMES)
    recipe = PAPER_REGIMES[regime]
    return clocks(np.full(round(recipe["epochs"] * _PAPER_STEPS_PER_EPOCH), recipe["lr"]), 128, recipe["weight_decay"])
