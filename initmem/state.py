"""What a run has become so far: its history and selected weights, kept on the way and written to checkpoints."""

import io
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from initmem.config import replacing
from initmem.models import Network, kernels


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

    def has_tested(self, horizons: Iterable[int]) -> bool:
        """Whether each of the horizons that lie behind was tested on the way."""
        return all(epochs > self.epoch or epochs in self.tests for epochs in horizons)

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
        buffer = io.BytesIO()  # written by torch itself, a full disk would be a RuntimeError that hides why
        torch.save(content, buffer)
        with replacing(path) as partial:
            partial.write_bytes(buffer.getbuffer())

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
