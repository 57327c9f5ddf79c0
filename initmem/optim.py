"""Five optimizers behind one function. Constant learning rates; nothing decays, warms up or averages."""

from collections import defaultdict

import torch
from torch import Tensor

from initmem.config import Run
from initmem.models import Network, kernels

# Muon leaves the stem, the head and the 1-D parameters to AdamW. One learning rate drives both, so that T_adapt is one
# number; the ratio is our assumption (the paper does not state its own).
MUON_ADAMW_RATIO = 0.1
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def make_optimizer(model: Network, run: Run, eps: float = 1e-8) -> torch.optim.Optimizer:
    """The optimizer of a run over all parameters.

    sgd, momentum and adam add λ·w to the gradient (L2); adamw and muon shrink the weights by 1 − ηλ (decoupled).
    `eps` is Adam's and AdamW's; the exact symmetry of scale-invariant networks holds as it goes to 0.
    """
    lr, decay, parameters = run.lr, run.weight_decay, list(model.parameters())
    match run.optimizer:
        case "sgd":
            # One multiply-add an element either way; on a processor a fused step would first copy every channels-last kernel.
            return torch.optim.SGD(parameters, lr, weight_decay=decay, foreach=True)
        case "momentum":
            return torch.optim.SGD(parameters, lr, run.momentum, weight_decay=decay, fused=True)
        case "adam":
            return torch.optim.Adam(parameters, lr, eps=eps, weight_decay=decay, fused=True)
        case "adamw":
            return torch.optim.AdamW(parameters, lr, eps=eps, weight_decay=decay, fused=True)
        case "muon":
            return Muon(model, lr, decay, eps)


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): momentum whose step is orthogonalized, for every kernel between stem and head.

    A kernel is read as a matrix (out, in·kh·kw); matrices of one shape, over layers and lanes, go as one batch.
    The step is η·sqrt(max(1, rows/columns)) times the nearest semi-orthogonal matrix. The rest goes by AdamW.
    """

    def __init__(self, model: Network, lr: float, weight_decay: float, eps: float = 1e-8, momentum: float = 0.95):
        hidden = [weight for _, weight in list(kernels(model))[1:-1]]
        named = {id(weight) for weight in hidden}
        rest = [p for p in model.parameters() if id(p) not in named]
        super().__init__(hidden, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))
        self.lanes = model.lanes
        self.adamw = torch.optim.AdamW(rest, MUON_ADAMW_RATIO * lr, eps=eps, weight_decay=weight_decay, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        self.adamw.step()
        group = self.param_groups[0]
        parameters, mu = group["params"], group["momentum"]
        gradients = [p.grad for p in parameters]
        buffers = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - mu)
        updates = dict(zip(parameters, torch._foreach_lerp(gradients, buffers, mu), strict=True))  # Nesterov
        batches = defaultdict(list)
        for p in parameters:
            # The order of a kernel's columns does not matter, so they are read as they lie: channels last, no copy.
            updates[p] = updates[p].permute(0, 2, 3, 1).reshape(self.lanes, p.shape[0] // self.lanes, -1)
            batches[updates[p].shape[1:]].append(p)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for (rows, columns), members in batches.items():
            steps = orthogonalize(torch.cat([updates[p] for p in members])).split(self.lanes)
            scale = group["lr"] * max(1, rows / columns) ** 0.5
            for p, step in zip(members, steps, strict=True):
                out, channels, height, width = p.shape
                p.add_(step.reshape(out, height, width, channels).permute(0, 3, 1, 2), alpha=-scale)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.adamw.zero_grad(set_to_none)

    def state_dict(self) -> dict:
        return {"muon": super().state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of a batch (n, rows, columns), by Muon's quintic Newton–Schulz iteration.

    X ← P X with P = a + b G + c G², G = X Xᵀ. Each P is a polynomial in the first G, so the small square factors are
    iterated and X is multiplied once at the end: half the arithmetic. In the dtype given; the published bfloat16 is
    slower on CPUs, and a thousand times less exact.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    gram, product = x @ x.mT, None
    for _ in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        gram = factor @ (gram @ factor)
    return (product @ x).mT if tall else product @ x
