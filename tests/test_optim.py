"""Every optimizer against its reference: the definition in NumPy, or torch's own on matrices."""

import numpy as np
import pytest
import torch

from initmem.config import OPTIMIZERS, preset
from initmem.models import build, resnet9
from initmem.optim import MUON_ADAMW_RATIO, Muon, make_optimizer, orthogonalize


def gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def reference(name, w, grads, lr, decay, momentum=0.9):
    """The update rules as published, in float64."""
    w, m, v, buffer = w.copy(), 0.0, 0.0, 0.0
    for k, g in enumerate(grads, 1):
        if name in ("sgd", "momentum", "adam"):
            g = g + decay * w
        if name == "sgd":
            w = w - lr * g
        elif name == "momentum":
            buffer = momentum * buffer + g
            w = w - lr * buffer
        else:
            if name == "adamw":
                w = w * (1 - lr * decay)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - lr * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    return w


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.03])
def test_against_the_published_rule(name, decay):
    model = resnet9(1, 3, width=2).double()
    run = preset("digits").replace(optimizer=name, lr=0.02, weight_decay=decay)
    optimizer, weight = make_optimizer(model, run), model.body[1][0].weight
    start, grads = weight.detach().numpy().copy(), []
    for step in range(6):
        gradients(model, step)
        grads.append(weight.grad.numpy().copy())
        optimizer.step()
    np.testing.assert_allclose(weight.detach().numpy(), reference(name, start, grads, 0.02, decay), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_memory_layout_of_kernels_changes_no_step(name):
    """Kernels and gradients lie channels-last in training; torch's fused steps are silently wrong where the two differ."""
    run = preset("digits").replace(optimizer=name, lr=0.02, weight_decay=0.03)
    plain, ours = (build(run, 1, 10, [0.5, 2.0]) for _ in range(2))
    ours.to(memory_format=torch.channels_last)
    steppers = [make_optimizer(model, run) for model in (plain, ours)]
    for step in range(3):
        images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(step)).to(memory_format=torch.channels_last)
        ours(images).square().mean().backward()
        assert all(p.grad.stride() == p.stride() for p in ours.parameters())
        for mine, other in zip(plain.parameters(), ours.parameters(), strict=True):
            mine.grad = other.grad.contiguous()
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        for mine, other in zip(plain.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_muon_against_torch_on_matrices(decay):
    model = resnet9(1, 3, width=4)
    ours = Muon(model, lr=0.02, weight_decay=decay)
    hidden = ours.param_groups[0]["params"]
    assert len(hidden) == 7, "all convolutions but the stem; not the head"
    matrices = [torch.nn.Parameter(p.detach().flatten(1).clone()) for p in hidden]
    theirs = torch.optim.Muon(matrices, lr=0.02, weight_decay=decay, momentum=0.95, nesterov=True)
    for step in range(5):
        gradients(model, step)
        for matrix, p in zip(matrices, hidden, strict=True):
            matrix.grad = p.grad.flatten(1).clone()
        ours.step()
        theirs.step()
    for matrix, p in zip(matrices, hidden, strict=True):
        moved = (p.detach().flatten(1) - matrix.detach()).norm() / (5 * 0.02 * min(matrix.shape) ** 0.5)
        assert moved < 0.02, "torch iterates in bfloat16, so steps agree to about a hundredth"


def test_muon_steps_the_rest_by_adamw():
    model = resnet9(1, 3, width=4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = Muon(model, lr=0.05, weight_decay=0.0)
    gradients(model, 0)
    optimizer.step()
    for name in ("body.0.0.weight", "head.weight", "head.bias", "body.0.1.weight"):
        step = (dict(model.named_parameters())[name].detach() - before[name]).abs()
        np.testing.assert_allclose(step, MUON_ADAMW_RATIO * 0.05, rtol=1e-4)  # Adam's first step is ±η


def test_orthogonalize_batches_are_near_semi_orthogonal():
    matrices = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for batch in (matrices, matrices.mT):
        values = torch.linalg.svdvals(orthogonalize(batch))
        assert values.min() > 0.5 and values.max() < 1.3  # the quintic's known band
        alone = torch.stack([orthogonalize(m[None])[0] for m in batch])
        torch.testing.assert_close(orthogonalize(batch), alone)
    assert orthogonalize(torch.zeros(1, 3, 4)).abs().max() == 0
