"""Choose learning rates by the clocks, before the evidence: `python benchmarks/pilot.py digits`.

Among the rates of the grid at which every pilot run interpolates (training accuracy of 99.5 % at some epoch), each
optimizer takes the one whose own clock comes nearest, by ratio, to the paper's at 300 epochs: T_SGD = 7.3e-4 for SGD,
T_adapt = 94 for adaptive methods. Pilot seeds start at 1000, where no verdict looks, and only training accuracy is read.
"""

import sys

import pandas as pd

import initmem
from initmem.clocks import run_clocks

GRIDS = {
    "digits": dict(sgd=[0.001, 0.003, 0.01], adam=[0.003, 0.01, 0.03], adamw=[0.003, 0.01, 0.03], muon=[0.003, 0.01, 0.03]),
    "laptop": dict(sgd=[0.003, 0.01], adam=[0.0125], adamw=[0.0125], muon=[0.0125]),
}


def pilot_runs(preset: str) -> list[initmem.Run]:
    """Two scales and two seeds for each rate on digits; one scale and one seed on CIFAR-10, where runs are dear."""
    axes = dict(sigma_w=[0.1, 2.5], seed=[1000, 1001]) if preset == "digits" else dict(sigma_w=2.5, seed=1000)
    return [
        run
        for optimizer, rates in GRIDS[preset].items()
        for rate in rates
        for run in initmem.grid(
            initmem.preset(preset).replace(optimizer=optimizer, lr=rate, weight_decay=0.01 * (optimizer == "adamw")), **axes
        )
    ]


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """A row a recipe: its driving clock and the share of pilot runs that interpolate."""
    rows = []
    for (optimizer, lr), mine in results.groupby(["optimizer", "lr"]):
        clocks = run_clocks(initmem.Run(**mine.iloc[0][list(initmem.Run.model_fields)]))
        best = [float(curve.max()) for curve in mine["train_accuracy"]]
        rows.append(dict(optimizer=optimizer, lr=lr, t_sgd=clocks.t_sgd, t_adapt=clocks.t_adapt, worst=min(best), n=len(mine)))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    preset = sys.argv[1] if len(sys.argv) > 1 else "digits"
    print(summary(initmem.sweep(pilot_runs(preset))).to_string(index=False))
