"""The experiment: train one network, or several lanes that differ in σ_w and seed, and record what it remembers.

With a constant learning rate a longer run begins as the shorter one does, bit for bit: one training gives both records.

No augmentation, constant learning rate, nothing frozen: anything that touched the norm would erase what is measured.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from initmem.config import ENGINE_VERSION, InitmemError, Run
from initmem.data import Data
from initmem.engine import Engine, prepare, provenance
from initmem.models import Network, build, kernels
from initmem.optim import make_optimizer
from initmem.seeds import ORDER, SPLIT, permutation
from initmem.state import State

CHECKPOINT_SECONDS = 60


def train(
    runs: Sequence[Run],
    data: Data,
    *,
    optimizer: Callable[[Network, Run], torch.optim.Optimizer] = make_optimizer,
    on_epoch: Callable[[int], None] = lambda done: None,
    on_records: Callable[[list[dict]], None] = lambda records: None,
    checkpoint: Path | None = None,
) -> list[dict]:
    """Train runs that differ in sigma_w, seed and epochs alone, and return one record (a row of the store) for each.

    Every seed at every scale is a lane, side by side; a run of fewer epochs is recorded on the way of the longest.

    `optimizer` makes the optimizer from the network and the first run. A reader's own may stand in its place; its records
    bear the name that the runs give, so keep them out of the store. `on_epoch` is called with the number of epochs behind
    it: at the start, which is not 0 where a checkpoint is taken up, and after every epoch; `on_records` with the records of
    each horizon before the longest, once reached. With `checkpoint` the state is saved about once a minute, and a later call with the same
    path goes on to the identical record.
    """
    run = max(runs, key=lambda r: r.epochs)
    seeds, horizons = list(dict.fromkeys(r.seed for r in runs)), {r.epochs for r in runs}
    lanes = [(scale, seed) for scale in dict.fromkeys(r.sigma_w for r in runs) for seed in seeds]
    engine = prepare(run)
    images = split(run, data, engine, seeds)
    model = build(run, data.train_images.shape[-1], len(data.classes), *zip(*lanes, strict=True))
    model.to(engine.device, memory_format=torch.channels_last)
    initial = [weight.detach().clone() for _, weight in kernels(model)]
    stepper = optimizer(model, run)
    state = State(model, initial)
    if checkpoint and checkpoint.exists() and not (state.load(checkpoint, model, stepper) and state.has_tested(horizons)):
        checkpoint.unlink()  # damaged, or past a horizon that nobody had asked for: start over, on an untouched network
        return train(runs, data, optimizer=optimizer, on_epoch=on_epoch, on_records=on_records, checkpoint=checkpoint)
    shared = dict(
        engine=ENGINE_VERSION,
        data_source=data.source,
        data_fingerprint=data.fingerprint,
        layers=[name for name, _ in kernels(model)],
        **provenance(engine),
        lanes=len(lanes),
    )

    def record(r: Run) -> dict:
        together = sum(other.epochs == r.epochs for other in runs)
        return (
            dict(run_id=r.run_id(data.fingerprint), **r.model_dump(), **shared, date=datetime.now(UTC).strftime("%Y-%m-%d"))
            | state.lane_record(lanes.index((r.sigma_w, r.seed)), r.epochs)
            | dict(wall_seconds=state.share(r.epochs) / together)
        )

    saved = time.monotonic()
    on_epoch(state.epoch)

    while state.epoch < run.epochs and not state.diverged.all():
        training = train_epoch(model, stepper, images, run, state.epoch, engine, seeds)
        _, validation = evaluate(model, images["val"], images["val_labels"], engine)
        state.record_epoch(model, initial, training, validation)
        if state.epoch in horizons or state.diverged.all():
            state.tests[state.epoch] = test(model, state, images, engine)
            if state.epoch < run.epochs:
                on_records([record(r) for r in runs if r.epochs == state.epoch])
        on_epoch(state.epoch)
        if checkpoint and time.monotonic() - saved > CHECKPOINT_SECONDS:
            state.save(checkpoint, model, stepper)
            saved = time.monotonic()
    return [record(r) for r in runs]


def train_epoch(
    model: Network, optimizer: torch.optim.Optimizer, images: dict[str, Tensor], run: Run, epoch: int, engine: Engine, seeds: Sequence[int] = ()
) -> Tensor:
    """One pass over the training images, without a host synchronization. Mean loss and accuracy per lane: (2, lanes)."""
    orders = [permutation(run.train_size, seed, ORDER, epoch).to(engine.device) for seed in seeds or [run.seed]]
    totals = torch.zeros(2, model.lanes, device=engine.device)
    model.train()
    for batch in torch.stack(orders, 1)[: run.steps_per_epoch * run.batch_size].split(run.batch_size):
        loss, right, _ = forward(model, take(images["train"], batch), take(images["train_labels"], batch), engine)
        optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()  # lanes share no parameter: each gets the gradient of its own loss
        optimizer.step()
        totals += torch.stack([loss.detach(), right])
    return totals / run.steps_per_epoch


def take(images: Tensor, batch: Tensor) -> Tensor:
    """Of images (N, seeds·C, ...) or labels (N, seeds) those that each seed's column of `batch` (B, seeds) names."""
    seeds = batch.shape[1]
    parts = [part[index] for part, index in zip(images.chunk(seeds, 1), batch.T, strict=True)]
    return parts[0] if seeds == 1 else torch.cat(parts, 1)


def split(run: Run, data: Data, engine: Engine, seeds: Sequence[int] = ()) -> dict[str, Tensor]:
    """Training, validation and test tensors on the device: images (N, seeds·C, H, W) normalized and channels-last in memory.

    Each seed draws training and validation images from the data's training part; the test set is always whole. Labels
    are (N, seeds).
    """
    available = len(data.train_labels)
    if run.train_size + run.val_size > available:
        raise InitmemError(
            f"train_size + val_size = {run.train_size} + {run.val_size} is more than the {available} training images of "
            f"{data.name}: choose at most {available} in all"
        )
    dtype = torch.bfloat16 if engine.bf16 else torch.float32  # autocast would round the images to bfloat16 anyway
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)

    def images(array: np.ndarray) -> Tensor:
        normalized = torch.from_numpy(np.array(array)).float().div_(255).sub_(mean).div_(std)  # in place: a copy is 120 MB
        return normalized.to(engine.device, dtype).permute(0, 3, 1, 2)

    def labels(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array))[:, None].to(engine.device)

    parts = []
    for seed in seeds or [run.seed]:
        order = permutation(available, seed, SPLIT).numpy()
        chosen = {"train": order[: run.train_size], "val": order[run.train_size :][: run.val_size]}
        tensors = {name: images(data.train_images[np.sort(part)]) for name, part in chosen.items()}
        parts.append(tensors | {f"{name}_labels": labels(data.train_labels[np.sort(part)]) for name, part in chosen.items()})
    test = {"test": images(data.test_images), "test_labels": labels(data.test_labels)}
    stacked = parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
    return stacked | test


def forward(model: Network, images: Tensor, labels: Tensor, engine: Engine) -> tuple[Tensor, Tensor, Tensor]:
    """Mean cross-entropy and share of right answers per lane, both (lanes,), and logits (B, lanes, classes), all float32."""
    with engine.autocast():
        logits = model(images)
    logits = logits.float()
    labels = labels.repeat(1, model.lanes // labels.shape[1])
    loss = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return loss.mean(0), (logits.argmax(2) == labels).float().mean(0), logits


@torch.inference_mode()
def evaluate(model: Network, images: Tensor, labels: Tensor, engine: Engine, batch: int = 500) -> tuple[Tensor, Tensor]:
    """Predicted classes (N, lanes) uint8, and mean loss and accuracy (2, lanes), both left on the device."""
    model.eval()
    total, predictions = torch.zeros(2, model.lanes, device=images.device), []
    for part, truth in zip(images.split(batch), labels.split(batch), strict=True):
        loss, right, logits = forward(model, part, truth, engine)
        total += torch.stack([loss, right]) * len(truth)
        predictions.append(logits.argmax(2).to(torch.uint8))
    return torch.cat(predictions), total / len(labels)


def test(model: Network, state: State, images: dict[str, Tensor], engine: Engine) -> dict:
    """Losses and accuracies (2, lanes) and predictions (N, lanes) on the test set, at this epoch and the selected one."""
    last_predictions, last = evaluate(model, images["test"], images["test_labels"], engine)
    state.swap_best(model)
    predictions, selected = evaluate(model, images["test"], images["test_labels"], engine)
    state.swap_best(model)
    measured = dict(last_predictions=last_predictions, last=last, predictions=predictions, selected=selected)
    measured |= dict(selected_epoch=state.selected_epoch)
    return {name: tensor.cpu() for name, tensor in measured.items()} | dict(seconds=state.seconds())
