"""The experiment: train one network, or several lanes that differ in σ_w and seed, and record what it remembers.

With a constant learning rate a longer run begins as the shorter one does, bit for bit: one training gives both records.

No augmentation, constant learning rate, nothing frozen: anything that touched the norm would erase what is measured.
"""

import os
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

CHECKPOINT_SECONDS = 60


def train(
    runs: Sequence[Run],
    data: Data,
    *,
    optimizer: Callable[[Network, Run], torch.optim.Optimizer] = make_optimizer,
    on_epoch: Callable[[], None] = lambda: None,
    checkpoint: Path | None = None,
) -> list[dict]:
    """Train runs that differ in sigma_w, seed and epochs alone, and return one record (a row of the store) for each.

    Every seed at every scale is a lane, side by side; a run of fewer epochs is recorded on the way of the longest.

    `optimizer` makes the optimizer from the network and the first run. A reader's own may stand in its place; its records
    bear the name that the runs give, so keep them out of the store. `on_epoch` is called after every epoch. With
    `checkpoint` the state is saved about once a minute, and a later call with the same path goes on to the identical
    record.
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
    if checkpoint and checkpoint.exists() and not state.load(checkpoint, model, stepper):
        checkpoint.unlink()  # damaged: start over, on a network that nothing has touched
        return train(runs, data, optimizer=optimizer, on_epoch=on_epoch, checkpoint=checkpoint)
    saved = time.monotonic()

    while state.epoch < run.epochs and not state.diverged.all():
        training = train_epoch(model, stepper, images, run, state.epoch, engine, seeds)
        _, validation = evaluate(model, images["val"], images["val_labels"], engine)
        state.record_epoch(model, initial, training, validation)
        if state.epoch in horizons or state.diverged.all():
            state.tests[state.epoch] = test(model, state, images, engine)
        on_epoch()
        if checkpoint and time.monotonic() - saved > CHECKPOINT_SECONDS:
            state.save(checkpoint, model, stepper)
            saved = time.monotonic()

    shared = dict(
        engine=ENGINE_VERSION,
        data_source=data.source,
        data_fingerprint=data.fingerprint,
        layers=[name for name, _ in kernels(model)],
        **provenance(engine),
        lanes=len(lanes),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    return [
        dict(run_id=r.run_id(data.fingerprint), **r.model_dump(), **shared)
        | state.lane_record(lanes.index((r.sigma_w, r.seed)), r.epochs)
        | dict(wall_seconds=state.share(r.epochs) / sum(other.epochs == r.epochs for other in runs))
        for r in runs
    ]


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


def test(model: Network, state: "State", images: dict[str, Tensor], engine: Engine) -> dict:
    """Losses and accuracies (2, lanes) and predictions (N, lanes) on the test set, at this epoch and the selected one."""
    last_predictions, last = evaluate(model, images["test"], images["test_labels"], engine)
    state.swap_best(model)
    predictions, selected = evaluate(model, images["test"], images["test_labels"], engine)
    state.swap_best(model)
    measured = dict(last_predictions=last_predictions, last=last, predictions=predictions, selected=selected)
    measured |= dict(selected_epoch=state.selected_epoch)
    return {name: tensor.cpu() for name, tensor in measured.items()} | dict(seconds=state.seconds())


class State:
    """What a run has become so far: its history, the weights of its validation minimum, the epochs done."""

    SCALARS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")

    def __init__(self, model: Network, initial: list[Tensor]):
        self.lanes, self.epoch, self.seconds_before, self.started = model.lanes, 0, 0.0, time.monotonic()
        device = initial[0].device
        self.best = [t.clone() for t in self._tensors(model)]
        self.best_loss = torch.full((model.lanes,), torch.inf, device=device)
        self.selected_epoch = torch.zeros(model.lanes, dtype=torch.int64, device=device)
        self.diverged = torch.zeros(model.lanes, dtype=torch.bool)
        self.scalars: list[Tensor] = []  # per epoch (4, lanes)
        self.geometry = [measure_kernels(model, initial)]  # per epoch from 0: norm and cosine (2, layers, lanes)
        self.tests: dict[int, dict] = {}  # by epoch, at the horizons: what `test` measured

    @staticmethod
    def _tensors(model: Network) -> list[Tensor]:
        return [t.detach() for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")]

    def record_epoch(self, model: Network, initial: list[Tensor], training: Tensor, validation: Tensor) -> None:
        """Add an epoch's measurements; keep the weights of the lanes whose validation loss has never been lower."""
        self.epoch += 1
        improved = validation[0] < self.best_loss
        self.best_loss = torch.where(improved, validation[0], self.best_loss)
        self.selected_epoch = torch.where(improved, self.epoch, self.selected_epoch)
        for kept, now in zip(self.best, self._tensors(model), strict=True):
            kept, now = kept.unflatten(0, (self.lanes, -1)), now.unflatten(0, (self.lanes, -1))
            kept.copy_(torch.where(improved.view(-1, *[1] * (now.dim() - 1)), now, kept))
        self.scalars.append(torch.cat([training, validation]).cpu())  # here, at the end of an epoch, the host first waits
        self.geometry.append(measure_kernels(model, initial))
        self.diverged |= ~self.scalars[-1][[0, 2]].isfinite().all(0)

    def seconds(self) -> float:
        """Wall time so far, over all processes that worked on this state."""
        return self.seconds_before + time.monotonic() - self.started

    def share(self, epochs: int) -> float:
        """Wall time between the horizon before this one and this one."""
        before = max((each["seconds"] for epoch, each in self.tests.items() if epoch < epochs), default=0.0)
        return max(0.0, self.tests[min(epochs, self.epoch)]["seconds"] - before)

    def swap_best(self, model: Network) -> None:
        """Exchange the model's weights for the selected ones, or back."""
        for kept, now in zip(self.best, self._tensors(model), strict=True):
            here = now.clone()
            now.copy_(kept)
            kept.copy_(here)

    def lane_record(self, lane: int, epochs: int) -> dict:
        """One lane's history and test. A diverged run stops at its first non-finite loss, which its history includes."""
        scalars, geometry = torch.stack(self.scalars)[:epochs, :, lane], torch.stack(self.geometry)[: epochs + 1, ..., lane]
        tested = {name: value[..., lane] for name, value in self.tests[min(epochs, self.epoch)].items() if name != "seconds"}
        bad = (~scalars[:, [0, 2]].isfinite().all(1)).nonzero()
        end = bad[0].item() + 1 if len(bad) else len(scalars)
        norms, cosines = geometry[: end + 1, 0], geometry[: end + 1, 1]
        return dict(
            status="diverged" if len(bad) else "finished",
            selected_epoch=min(tested["selected_epoch"].item(), end),
            **{name: scalars[:end, i].numpy() for i, name in enumerate(self.SCALARS)},
            norm=norms.square().sum(1).sqrt().numpy(),
            layer_norms=norms.flatten().numpy(),
            layer_cosines=cosines.flatten().numpy(),
            **dict(zip(("test_loss", "test_accuracy"), tested["selected"].tolist(), strict=True)),
            **dict(zip(("last_test_loss", "last_test_accuracy"), tested["last"].tolist(), strict=True)),
            **{name: tested[name].numpy().tobytes() for name in ("predictions", "last_predictions")},
        )

    def save(self, path: Path, model: Network, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint atomically."""
        names = ("epoch", "best", "best_loss", "selected_epoch", "diverged", "scalars", "geometry", "tests")
        content = {name: getattr(self, name) for name in names} | {"seconds_before": self.seconds()}
        content |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        torch.save(content, partial)
        os.replace(partial, path)

    def load(self, path: Path, model: Network, optimizer: torch.optim.Optimizer) -> bool:
        """Take up a checkpoint; False if it cannot be read."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)  # no foreign pickles
            content["tests"]  # without them, as a former version wrote it, the end could not be recorded
            model.load_state_dict(content.pop("model"))
            optimizer.load_state_dict(content.pop("optimizer"))
        except Exception:  # whatever a damaged file makes torch raise
            return False
        device = self.best_loss.device
        vars(self).update(content, best=[t.to(device) for t in content["best"]])
        self.best_loss, self.selected_epoch = self.best_loss.to(device), self.selected_epoch.to(device)
        return True


def measure_kernels(model: Network, initial: list[Tensor]) -> Tensor:
    """Frobenius norm of every kernel and cosine of its angle to its initial self: (2, layers, lanes), on the CPU."""
    now = [weight.detach().reshape(model.lanes, -1) for _, weight in kernels(model)]
    then = [weight.reshape(model.lanes, -1) for weight in initial]
    norms = torch.stack([w.norm(dim=1) for w in now])
    cosines = torch.stack([F.cosine_similarity(a, b, dim=1) for a, b in zip(now, then, strict=True)])
    return torch.stack([norms, cosines]).cpu()
