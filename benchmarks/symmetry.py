"""What breaks the symmetry of scale and rate in a real network: `python benchmarks/symmetry.py`, some ten minutes of one core.

On digits, networks at two scales train at the partner rate of σ_w = 1: η σ_w² for SGD, η σ_w for Adam. Were every trained
weight in front of a BatchNorm, they would be the network at σ_w = 1. The exceptions are then put right one by one: what
no BatchNorm follows is drawn and trained as at σ_w = 1, and the small constants ε grow with what they are added to, the
variances of BatchNorm and the gradients of Adam. With all of it the symmetry is exact to the last bit. The table goes
to benchmarks/results/symmetry.json; the chapter rate-in-disguise shows it.
"""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from common import write

import initmem
from initmem import data, metrics
from initmem.models import Network
from initmem.optim import make_optimizer
from initmem.train import train

SEEDS, SCALES = range(2 if "--quick" in sys.argv else 10), (0.25, 2.0)  # powers of two scale without rounding
BASE = {"sgd": (0.003, 2), "adam": (0.003, 1)}  # learning rate at σ_w = 1, and the power of σ_w that it takes
VARIANTS = {
    "nothing": (),
    "γ, β and the head's bias": ("norms",),
    "the head": ("head",),
    "all these": ("norms", "head"),
    "all these, and ε": ("norms", "head", "epsilon"),
}


def records(run: initmem.Run, base: initmem.Run, cured: Sequence[str]) -> list[dict]:
    """One record a seed of the run's recipe, with what is cured drawn and trained as in `base`."""

    def optimizer(model: Network, run: initmem.Run) -> torch.optim.Optimizer:
        head, ours = [model.head.weight], list(model.parameters())
        norms = [p for p in ours if p.dim() == 1]
        kept = head * ("head" in cured) + norms * ("norms" in cured)
        if "head" in cured:
            head[0].data.mul_(base.sigma_w / run.sigma_w)
        if "epsilon" in cured:
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.eps *= (run.sigma_w / base.sigma_w) ** 2
        stepper = make_optimizer(model, run, eps=1e-8 * (base.sigma_w / run.sigma_w if "epsilon" in cured else 1))
        stepper.param_groups[0]["params"] = [p for p in ours if not any(p is other for other in kept)]
        if kept:
            stepper.add_param_group({"params": kept, "lr": base.lr, "eps": 1e-8})
        return stepper

    return train([run.replace(seed=seed) for seed in SEEDS], data.load("digits"), optimizer=optimizer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = []
    for name, (lr, power) in BASE.items():
        base = initmem.preset("digits").replace(optimizer=name, lr=lr, sigma_w=1.0)
        for variant, cured in VARIANTS.items():
            reference = records(base, base, cured)
            for scale in SCALES:
                partners = records(base.replace(sigma_w=scale, lr=lr * scale**power), base, cured)
                pairs = list(zip(partners, reference, strict=True))
                change = metrics.bootstrap(np.array([100 * (a["last_test_accuracy"] - b["last_test_accuracy"]) for a, b in pairs]), lambda means: means)
                apart = metrics.bootstrap(
                    np.array([100 * metrics.disagreement(a["last_predictions"], b["last_predictions"]) for a, b in pairs]), lambda means: means, least=0
                )
                rows.append(dict(optimizer=name, cured=variant, sigma_w=scale, change=change, disagreement=apart))
                print(f"{name}, cured: {variant}, σ_w = {scale:g}: {change:.2f} pp, disagreement {apart:.1f} %", flush=True)
    if "--quick" not in sys.argv:
        write("symmetry", rows, seeds=len(SEEDS), rates={name: lr for name, (lr, _) in BASE.items()}, engine=initmem.config.ENGINE_VERSION)
