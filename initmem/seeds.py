"""Random streams. Each depends on the run's seed and its purpose alone: the paired design rests on this."""

import numpy as np
import torch

SPLIT, ORDER, KERNELS = range(3)


def generator(seed: int, stream: int, index: int = 0) -> torch.Generator:
    """A CPU generator for (seed, stream, index), independent of every other; `index` is an epoch or a layer."""
    state = np.random.SeedSequence([seed, stream, index]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)  # manual_seed takes 63 bits


def permutation(n: int, seed: int, stream: int, index: int = 0) -> torch.Tensor:
    """A random order of n items, int64 (n,)."""
    return torch.randperm(n, generator=generator(seed, stream, index))
