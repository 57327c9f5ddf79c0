"""The paper's three networks, and their initialization at a given scale.

Every network can hold several independent copies of itself, *lanes*, side by side in its channels (grouped
convolutions), so that on tiny images one pass trains many at a fraction of the overhead. The σ_w values of one recipe and
seed share their batches; those of several seeds come stacked in the channels. With one lane a network is the ordinary
one, layer for layer.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initmem.config import ARCHS, Run, unknown
from initmem.seeds import KERNELS, generator


class ConvNormReLU(nn.Sequential):
    """3×3 convolution without bias, BatchNorm, ReLU."""

    def __init__(self, channels_in: int, channels_out: int, lanes: int, stride: int = 1, relu: bool = True):
        super().__init__(
            nn.Conv2d(lanes * channels_in, lanes * channels_out, 3, stride, padding=1, bias=False, groups=lanes),
            nn.BatchNorm2d(lanes * channels_out),
            *[nn.ReLU(inplace=True)] * relu,
        )


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class BasicBlock(nn.Module):
    """He et al. 2016: two convolutions and a parameter-free shortcut (subsampling, new channels zero)."""

    def __init__(self, channels_in: int, channels_out: int, lanes: int, stride: int):
        super().__init__()
        self.lanes, self.stride, self.new = lanes, stride, channels_out - channels_in
        self.body = nn.Sequential(
            ConvNormReLU(channels_in, channels_out, lanes, stride),
            ConvNormReLU(channels_out, channels_out, lanes, relu=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.new:
            shortcut = F.pad(shortcut.unflatten(1, (self.lanes, -1)), (0, 0, 0, 0, 0, self.new)).flatten(1, 2)
        return F.relu(shortcut + self.body(x))


class Network(nn.Module):
    """A body of convolutions, one global pooling, and a linear head (a 1×1 convolution, so that lanes stay apart).

    Input (B, n·C, H, W): n images side by side, for lanes 0 to n − 1 and again for every n lanes that follow, n = 1 being
    the same image for all; output logits (B, lanes, classes).
    """

    def __init__(self, body: nn.Module, features: int, classes: int, lanes: int, pool: str):
        super().__init__()
        self.body, self.lanes = body, lanes
        self.pool = {"max": lambda x: x.amax((2, 3), keepdim=True), "mean": lambda x: x.mean((2, 3), keepdim=True)}[pool]
        self.channels = next(m.in_channels for m in body.modules() if isinstance(m, nn.Conv2d))
        self.head = nn.Conv2d(lanes * features, lanes * classes, 1, groups=lanes)

    def forward(self, images: Tensor) -> Tensor:
        copies = self.channels // images.shape[1]
        x = images.repeat(1, copies, 1, 1) if copies > 1 else images
        return self.head(self.pool(self.body(x))).flatten(1).unflatten(1, (self.lanes, -1))


def resnet9(channels: int, classes: int, width: int = 64, lanes: int = 1) -> Network:
    """ResNet-9 (after Page 2018): eight convolutions, four of them in two residual pairs, max-pooled globally."""

    def block(channels_in: int, channels_out: int) -> ConvNormReLU:
        return ConvNormReLU(channels_in, channels_out, lanes)

    def residual(width: int) -> Residual:
        return Residual(block(width, width), block(width, width))

    w, pool = width, nn.MaxPool2d(2)
    body = nn.Sequential(
        block(channels, w),
        *[block(w, 2 * w), pool, residual(2 * w)],
        *[block(2 * w, 4 * w), pool],
        *[block(4 * w, 8 * w), pool, residual(8 * w)],
    )
    return Network(body, 8 * w, classes, lanes, pool="max")


def resnet_cifar(depth: int, channels: int, classes: int, width: int = 16, lanes: int = 1) -> Network:
    """The CIFAR ResNets of He et al. 2016: depth = 6n + 2, three stages of n basic blocks, mean-pooled globally."""
    blocks = [ConvNormReLU(channels, width, lanes)]
    inside = width
    for outside, stride in [(width, 1), (2 * width, 2), (4 * width, 2)]:
        for i in range((depth - 2) // 6):
            blocks.append(BasicBlock(inside, outside, lanes, stride if i == 0 else 1))
            inside = outside
    return Network(nn.Sequential(*blocks), inside, classes, lanes, pool="mean")


def build(
    run: Run, channels: int, classes: int, sigma_w: Sequence[float] | None = None, seeds: Sequence[int] | None = None
) -> Network:
    """The initialized network of a run, float32 on the CPU; several σ_w, and as many seeds if they differ, give one lane each."""
    sigma_w = [run.sigma_w] if sigma_w is None else sigma_w
    if run.arch not in ARCHS:
        raise unknown("arch", run.arch, ARCHS)
    if run.arch == "resnet9":
        model = resnet9(channels, classes, run.width, len(sigma_w))
    else:
        model = resnet_cifar(run.depth, channels, classes, run.width, len(sigma_w))
    init_kernels(model, sigma_w, [run.seed] * len(sigma_w) if seeds is None else seeds)
    return model


def kernels(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and weight of every kernel, from input to output: each convolution, then the head."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            yield name, module.weight


@torch.no_grad()
def init_kernels(model: Network, sigma_w: Sequence[float], seeds: Sequence[int]) -> None:
    """Draw every kernel W = σ_w · G / sqrt(fan_in), G standard normal; biases 0, BatchNorm γ = 1, β = 0.

    G depends on the seed and the layer alone, so σ_w sets the radius and never the direction. `sigma_w` and `seeds` hold
    one value per lane; sqrt(2) is He's initialization.
    """
    for index, (_, weight) in enumerate(kernels(model)):
        shape = (weight.shape[0] // model.lanes, *weight.shape[1:])
        fan_in = math.prod(shape[1:])
        draws = {
            seed: torch.randn(shape, generator=generator(seed, KERNELS, index), dtype=torch.float64) / math.sqrt(fan_in)
            for seed in set(seeds)
        }
        weight.copy_(torch.cat([scale * draws[seed] for scale, seed in zip(sigma_w, seeds, strict=True)]))
    nn.init.zeros_(model.head.bias)
