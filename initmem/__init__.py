"""Does a trained network remember how it was initialized? Train, keep, measure, judge.

Names load on first use: reading results, drawing them and judging claims never imports torch.
"""

import importlib

_HOMES = {
    "config": ["Run", "InitmemError", "preset", "grid"],
    "runner": ["sweep"],
    "store": ["read"],
    "metrics": [
        "spread", "spread_ratio", "radial_memory", "noise_floor", "interpolated_share", "interpolation_epoch",
        "interpolated_at_largest", "trend", "rank_correlation", "collapse", "curve_misfit", "curve_distance", "disagreement_over", "disagreement_between", "repair_gap", "disagreement", "turned", "effective_lr", "table",
    ],
    "clocks": ["run_clocks", "paper_clocks", "matched_lr"],
    "claims": ["claim", "ledger", "scoreboard", "Parameters"],
    "chapters": ["check", "choose_runs", "panels", "seeds_in"],
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'initmem' has no attribute {name!r}")
    return getattr(importlib.import_module(f"initmem.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
