"""What a sweep will cost, before it begins: runs, arithmetic, hours. Counting is plain arithmetic and needs no torch."""

import importlib.util
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from initmem import store
from initmem.config import InitmemError, Run
from initmem.runner import available_cores, data_shape, find_missing, is_tiny, lanes

CARD_FLOPS = 50e12  # assumed of a data-centre GPU in bfloat16; not measured


def layers(run: Run, shape: tuple[int, int, int], classes: int) -> Iterator[tuple[int, int, int, int]]:
    """(kernel area, channels in, channels out, output pixels) of every kernel, for images of shape (H, W, C)."""
    (height, width, channels), w = shape, run.width

    def conv(channels_in: int, channels_out: int) -> tuple[int, int, int, int]:
        return 9, channels_in, channels_out, height * width

    yield conv(channels, w)
    if run.arch == "resnet9":
        for channels_in, channels_out, blocks in [(w, 2 * w, 2), (2 * w, 4 * w, 0), (4 * w, 8 * w, 2)]:
            yield conv(channels_in, channels_out)
            height, width = height // 2, width // 2
            yield from [conv(channels_out, channels_out)] * blocks
        yield 1, 8 * w, classes, 1
        return
    convolutions = (run.depth - 2) // 3
    for stage in range(3):
        height, width = (math.ceil(height / 2), math.ceil(width / 2)) if stage else (height, width)
        yield conv(w * 2**stage // (2 if stage else 1), w * 2**stage)
        yield from [conv(w * 2**stage, w * 2**stage)] * (convolutions - 1)
    yield 1, 4 * w, classes, 1


def forward_flop(run: Run) -> int:
    """Floating-point operations of one image's way through the kernels: two for each multiply-add."""
    shape, classes = data_shape(run.dataset)
    return 2 * sum(math.prod(layer) for layer in layers(run, shape, classes))


def run_flop(run: Run) -> int:
    """Operations of a whole run: three forward passes' worth for each image of a step, one for each validation image."""
    return run.epochs * (3 * run.steps_per_epoch * run.batch_size + run.val_size) * forward_flop(run)


def step_seconds(run: Run, together: int, seconds: float = 2.0) -> float:
    """Measured time of one training step of `together` lanes on this machine, from about `seconds` of random images."""
    import torch

    from initmem.engine import prepare
    from initmem.models import build
    from initmem.optim import make_optimizer
    from initmem.train import train_epoch

    (height, width, channels), classes = data_shape(run.dataset)
    run, engine = run.replace(train_size=4 * run.batch_size, epochs=1), prepare(run)
    images = torch.randn(run.train_size, height, width, channels).permute(0, 3, 1, 2)
    images = images.to(engine.device, torch.bfloat16 if engine.bf16 else torch.float32)
    part = {"train": images, "train_labels": torch.randint(classes, (run.train_size, 1), device=engine.device)}
    model = build(run, channels, classes, [run.sigma_w] * together).to(engine.device, memory_format=torch.channels_last)
    optimizer = make_optimizer(model, run)
    train_epoch(model, optimizer, part, run, 0, engine).cpu()  # warm up
    epochs, started = 0, time.perf_counter()
    while epochs == 0 or time.perf_counter() - started < seconds:
        train_epoch(model, optimizer, part, run, epochs, engine).cpu()
        epochs += 1
    return (time.perf_counter() - started) / (epochs * run.steps_per_epoch)


def text(runs: Sequence[Run], cards: int | None = None, jobs: int | None = None) -> str:
    """The plan of a sweep in a few lines: runs in all and missing, arithmetic, hours here and on `cards` GPUs.

    Hours here are measured, about two seconds for each kind of step, if torch is installed.
    """
    missing = find_missing(runs, store.current(store.read(columns=["run_id", "engine", "dataset", "data_fingerprint"])))
    lines = [f"{len(runs)} runs, {len(missing)} to train"]
    if not missing:
        return lines[0]
    networks = [max(map(run_flop, network)) for network in lanes(missing, len(missing))]  # a longer run holds the shorter
    total, longest, tiny = sum(networks), max(networks), all(map(is_tiny, missing))
    lines.append(f"arithmetic: {_amount(total)}FLOP, {_amount(longest)}FLOP for the longest run")
    rate, whose = CARD_FLOPS, "assumed and not measured"
    if importlib.util.find_spec("torch"):
        import torch

        cores = available_cores()
        jobs = jobs or (cores if tiny else 1)
        groups = lanes(missing, jobs)
        jobs = min(jobs, len(groups))
        torch.set_num_threads(max(1, cores // jobs))
        kinds = Counter()
        for group in groups:  # the same step whatever scale, seed and number of epochs
            kind = group[0].replace(sigma_w=1.0, seed=0, epochs=1)
            kinds[kind, len({run.replace(epochs=1) for run in group})] += max(run.epochs for run in group) * kind.steps_per_epoch * run_flop(kind) / (
                3 * kind.steps_per_epoch * kind.batch_size * forward_flop(kind)
            )  # steps, with validation counted in
        seconds = sum(steps * step_seconds(kind, together) for (kind, together), steps in kinds.items()) / jobs
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cores} processors"
        lines.append(f"this machine ({device}): {_amount(total / seconds)}FLOP/s measured, {_hours(seconds)}")
        if torch.cuda.is_available():
            rate, whose = total / seconds, "measured on this machine's card"
    else:
        lines.append("this machine: unknown, since measuring a step needs torch: pip install 'initmem[train]'")
    if cards is not None and tiny:
        lines.append("a card gains nothing here: steps this small are overhead, and processors do them as fast")
    elif cards is not None:
        if cards < 1:
            raise InitmemError(f"cards = {cards} is not allowed: give a whole number of 1 or more")
        lines.append(f"{cards} cards: {_hours(max(total / cards, longest) / rate)}, at {_amount(rate)}FLOP/s a card, {whose}")
    return "\n".join(lines)


def _amount(number: float) -> str:
    """Three digits and a prefix: 27.3 P."""
    power = min(6, max(0, int(math.log10(number) // 3)))
    return f"{number / 1000**power:.3g} {' kMGTPE'[power].strip()}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{max(1, round(seconds / 60))} minutes"
