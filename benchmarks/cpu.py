"""How much faster than the plain recipe, side by side in one process: `python benchmarks/cpu.py`.

The plain recipe is the usual tutorial: Dataset, DataLoader, PIL transforms, float32, NCHW. Ours is `train.train_epoch`, as
every run uses it. Rounds alternate, so that a busy machine slows both; the ratio of medians is what counts. The images
are random: speed does not depend on them.
"""

import platform
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from initmem.config import Run, preset
from initmem.data import Data
from initmem.engine import prepare
from initmem.models import build
from initmem.optim import make_optimizer
from initmem.train import split, train_epoch

IMAGES, ROUNDS = 2048, 5
rng = np.random.default_rng(0)
DATA = Data(
    name="cifar10", source="random", fingerprint="random", classes=tuple("0123456789"),
    train_images=rng.integers(0, 256, (IMAGES + 1, 32, 32, 3), dtype=np.uint8), train_labels=rng.integers(0, 10, IMAGES + 1),
    test_images=np.zeros((1, 32, 32, 3), np.uint8), test_labels=np.zeros(1, np.int64), mean=(0.5,) * 3, std=(0.25,) * 3,
)  # fmt: skip


class Plain(Dataset):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(DATA.mean, DATA.std)])

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(DATA.train_images[index])), int(DATA.train_labels[index])


def plain_recipe(run: Run):
    model = build(run, 3, 10)
    optimizer = torch.optim.SGD(model.parameters(), run.lr)
    loader = DataLoader(Plain(), run.batch_size, shuffle=True, drop_last=True)

    def epoch() -> None:
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images)[:, 0], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # the running loss that a progress bar shows

    return epoch


def ours(run: Run):
    engine = prepare(run)
    images = split(run, DATA, engine)
    model = build(run, 3, 10).to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, run)
    return lambda: train_epoch(model, optimizer, images, run, 0, engine)


def timed(epoch) -> float:
    started = time.perf_counter()
    epoch()
    return time.perf_counter() - started


if __name__ == "__main__":
    threads = torch.get_num_threads()
    native = prepare(preset("laptop")).bf16
    print(f"{platform.machine()}, {threads} threads, torch {torch.__version__}, bf16 {'native' if native else 'not native'}")
    if "--quick" in sys.argv:  # a first look
        ROUNDS = 2
    for batch_size in (32, 128):
        run = preset("laptop").replace(batch_size=batch_size, train_size=IMAGES, val_size=1)
        # The plain recipe is measured first with memory as glibc has it: ours changes that for the whole process.
        plain_epoch = plain_recipe(run)
        plain_epoch()
        before = statistics.median(timed(plain_epoch) for _ in range(ROUNDS))
        variants = {"auto": ours(run), "fp32": ours(run.replace(precision="fp32"))}
        for epoch in variants.values():
            epoch()
        times = {name: [] for name in [*variants, "plain"]}
        for _ in range(ROUNDS):
            for name, epoch in variants.items():
                times[name].append(timed(epoch))
            times["plain"].append(timed(plain_epoch))
        after = statistics.median(times["plain"])
        print(f"b = {batch_size}: plain {IMAGES / before:.0f} images/s ({IMAGES / after:.0f} once memory is kept)")
        for name in variants:
            mine = statistics.median(times[name])
            print(f"  ours, {name}: {IMAGES / mine:.0f} images/s, {before / mine:.2f} × plain ({after / mine:.2f} × once memory is kept)")
