"""Where the time of a training step goes, by kind of operation: `python benchmarks/parts.py [--quick]`.

The profiler of torch adds up the time of each operation without those it calls; shares are of the sum. The table goes to
benchmarks/results/parts-bf16.json where the processor computes bfloat16, to parts-fp32.json where not; `--quick` leaves none.
"""

import sys

import torch
from common import processor, random_data, timed, write
from torch.profiler import ProfilerActivity, profile

from initmem.config import Run, preset
from initmem.engine import prepare
from initmem.models import build
from initmem.optim import make_optimizer
from initmem.train import evaluate, split, train_epoch

QUICK = "--quick" in sys.argv
STEPS = 8 if QUICK else 64
# Part of an operation's name → what it is for; the first that fits counts.
KINDS = {
    "convolution": ("conv",),
    "BatchNorm": ("batch_norm",),
    "loss and accuracy": ("softmax", "nll", "argmax", "aten::mean", "aten::sum", "aten::eq"),
    "ReLU and residual sums": ("relu", "clamp", "threshold", "add"),
    "pooling": ("pool", "amax", "scatter", "max"),
    "optimizer": ("sgd", "adam", "_foreach", "mm"),
    "copies into another layout": ("copy", "clone", "contiguous"),
    "choosing and stacking images": ("index", "repeat", "cat"),
}


def parts(run: Run, scales: list[float], shape: tuple[int, int, int]) -> dict[str, float]:
    """Share of each kind in the time of a training epoch, and the time of validation against that of training."""
    engine, data = prepare(run), random_data(run.train_size + run.val_size, shape)
    images, model = split(run, data, engine), build(run, shape[2], 10, scales).to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, run)
    work = lambda: train_epoch(model, optimizer, images, run, 0, engine)  # noqa: E731
    work()
    seconds = min(timed(work) for _ in range(3))
    validation = min(timed(lambda: evaluate(model, images["val"], images["val_labels"], engine)) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    shares = dict.fromkeys([*KINDS, "bookkeeping and all else"], 0.0)
    for event in profiler.key_averages():
        name = event.key.lower()
        kind = next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "bookkeeping and all else")
        shares[kind] += event.self_cpu_time_total
    whole = sum(shares.values())
    return {kind: time / whole for kind, time in shares.items()} | {"validation, against training": validation / seconds}


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in a sweep of two processes, and so that times add up
    laptop, digits = preset("laptop"), preset("digits")
    cases = {
        "laptop, b = 32": (laptop.replace(train_size=32 * STEPS, val_size=8 * STEPS), [1.0], (32, 32, 3)),
        "laptop, b = 8": (laptop.replace(train_size=8 * STEPS, val_size=2 * STEPS, batch_size=8), [1.0], (32, 32, 3)),
        "digits, 1 lane": (digits, [1.0], (8, 8, 1)),
        "digits, 7 lanes": (digits, [0.1, 0.3, 0.6, 1.0, 1.4, 2.0, 2.5], (8, 8, 1)),
    }
    rows = []
    for name, (run, scales, shape) in cases.items():
        shares = parts(run, scales, shape)
        rows += [{"case": name, "part": part, "share": round(share, 4)} for part, share in shares.items()]
        print(name, {part: f"{100 * share:.0f} %" for part, share in shares.items()}, flush=True)
    if not QUICK:
        write("parts-bf16" if prepare(laptop).bf16 else "parts-fp32", rows, processor=processor())
