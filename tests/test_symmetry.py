"""The exact symmetry: for scale-invariant networks (σ_w, η, λ) has partners that give the same function at every step."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import ROOT
from initmem.config import preset
from initmem.models import Network, init_kernels
from initmem.optim import make_optimizer


class ScaleInvariant(Network):
    """Convolutions and a head each followed by BatchNorm without affine parameters and with ε → 0; nothing else trains."""

    def __init__(self):
        def norm(channels):
            return nn.BatchNorm2d(channels, eps=1e-30, affine=False)

        layers, width = [], 3
        for out in (6, 6, 8):
            layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), norm(out), nn.ReLU()]
            width = out
        super().__init__(nn.Sequential(*layers), 8, 5, lanes=1, pool="mean")
        self.head = nn.Sequential(nn.Conv2d(8, 5, 1, bias=False), norm(5))
        self.double()


def trained_outputs(optimizer, sigma_w, lr, weight_decay, steps=50):
    """Outputs on fixed images after some steps, from kernels of one seed."""
    run = preset("digits").replace(optimizer=optimizer, sigma_w=sigma_w, lr=lr, weight_decay=weight_decay)
    model = ScaleInvariant()
    model.head.bias = nn.Parameter(torch.zeros(1))  # init_kernels zeroes the head's bias; this one is not trained
    init_kernels(model, [sigma_w], [3])
    del model.head.bias
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(24, 3, 6, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (24,), generator=generator)
    descent = make_optimizer(model, run, eps=1e-200)
    for step in range(steps):
        part = slice(8 * (step % 3), 8 * (step % 3) + 8)
        loss = F.cross_entropy(model(images[part])[:, 0], labels[part])
        descent.zero_grad()
        loss.backward()
        descent.step()
    with torch.no_grad():
        return model(images)


# optimizer, L2, powers of c in the partner's learning rate and weight decay
CASES = [
    ("sgd", 0.0, 2, 0),
    ("sgd", 0.02, 2, -2),
    ("momentum", 0.0, 2, 0),
    ("momentum", 0.02, 2, -2),
    ("adam", 0.0, 1, 0),
    ("adam", 0.02, 1, -2),  # L2 in the gradient, which itself scales as 1/c
    ("adamw", 0.02, 1, -1),
    ("muon", 0.0, 1, 0),
    ("muon", 0.02, 1, -1),
]


@pytest.mark.parametrize("c", [0.4, 3.7])
@pytest.mark.parametrize(("optimizer", "decay", "lr_power", "decay_power"), CASES)
def test_partners_are_the_same_function(optimizer, decay, lr_power, decay_power, c):
    lr = 0.05 if optimizer in ("sgd", "momentum") else 0.01
    ours = trained_outputs(optimizer, 1.0, lr, decay)
    partner = trained_outputs(optimizer, c, lr * c**lr_power, decay * c**decay_power)
    assert (ours - partner).abs().max() < 1e-9


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "muon"])
def test_without_the_partner_rate_the_function_differs(optimizer):
    lr = 0.05 if optimizer in ("sgd", "momentum") else 0.01
    assert (trained_outputs(optimizer, 1.0, lr, 0.0) - trained_outputs(optimizer, 3.7, lr, 0.0)).abs().max() > 0.1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_with_its_exceptions_put_right_a_real_network_obeys_the_symmetry(optimizer, monkeypatch):
    """The cures of benchmarks/symmetry.py: with all of them partners agree to the last bit, with none they do not.

    The scale is a power of two, by which float32 multiplies exactly.
    """
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    symmetry = pytest.importorskip("symmetry")
    lr, power = symmetry.BASE[optimizer]
    base = preset("digits").replace(optimizer=optimizer, lr=lr, sigma_w=1.0, epochs=2, train_size=96, val_size=32)
    partner = base.replace(sigma_w=4.0, lr=lr * 4.0**power)
    losses = {
        variant: [symmetry.records(run, base, symmetry.VARIANTS[variant])[0]["train_loss"] for run in (base, partner)]
        for variant in ("nothing", "all these, and ε")
    }
    exact, broken = losses["all these, and ε"], losses["nothing"]
    np.testing.assert_array_equal(exact[0], exact[1])
    assert np.abs(broken[0] / broken[1] - 1).max() > 0.02
