"""How much faster than the plain recipe, side by side in one run: `python benchmarks/cpu.py [--quick]`.

The plain recipe is the usual tutorial: Dataset, DataLoader, PIL transforms, float32, NCHW; Lightning's Trainer drives the
same where it is installed. Ours is `train.train_epoch`, as every run uses it. Rounds alternate, so that a busy machine slows
all; the ratio of medians is what counts. Our setting of the allocator stays for the process, so each size has its own
and its plain recipe comes first. The table goes to benchmarks/results/cpu-bf16.json where the
processor computes bfloat16 and to cpu-fp32.json where not; `--quick` is a rehearsal and leaves none.
"""

import importlib.util
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from common import matrix_flops, memory_bandwidth, processor, random_data, timed, write
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from initmem.config import Run, preset
from initmem.engine import prepare
from initmem.models import build
from initmem.optim import make_optimizer
from initmem.train import split, train_epoch

QUICK = "--quick" in sys.argv
IMAGES, ROUNDS = (256, 1) if QUICK else (1024, 5)
SIZES = [(16, 32)] if QUICK else [(16, 32), (16, 128), (64, 128)]  # width, batch
DATA = random_data(IMAGES)


class Plain(Dataset):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(DATA.mean, DATA.std)])

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(DATA.train_images[index])), int(DATA.train_labels[index])


def plain(run: Run):
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


def lightning(run: Run):
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = build(run, 3, 10)

        def training_step(self, batch, _index):
            images, labels = batch
            return F.cross_entropy(self.model(images)[:, 0], labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), run.lr)

    module, loader = Module(), DataLoader(Plain(), run.batch_size, shuffle=True, drop_last=True)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    return lambda: Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(module, loader)


def ours(run: Run):
    engine = prepare(run)
    images = split(run, DATA, engine)
    model = build(run, 3, 10).to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, run)
    return lambda: train_epoch(model, optimizer, images, run, 0, engine)


def compare(run: Run) -> dict[str, float]:
    """Images a second of each recipe. The plain one is measured twice: ours changes how memory is kept, for all."""
    recipes = {"plain": plain(run)} | ({"lightning": lightning(run)} if importlib.util.find_spec("lightning") else {})
    for epoch in recipes.values():
        epoch()
    before = {name: IMAGES / statistics.median(timed(epoch) for _ in range(ROUNDS)) for name, epoch in recipes.items()}
    variants = {"ours": ours(run), "ours, float32": ours(run.replace(precision="fp32")), "plain, memory kept": recipes["plain"]}
    times = {name: [] for name in variants}
    for epoch in variants.values():
        epoch()
    for _ in range(ROUNDS):
        for name, epoch in variants.items():
            times[name].append(timed(epoch))
    return before | {name: IMAGES / statistics.median(taken) for name, taken in times.items()}


if __name__ == "__main__":
    if not importlib.util.find_spec("lightning"):
        print("lightning is not installed: its Trainer is left out of the comparison")
    rows = []
    runs = [preset("laptop").replace(width=w, batch_size=b, train_size=IMAGES, val_size=1) for w, b in SIZES]
    fresh = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
    for (width, batch_size), speeds in zip(SIZES, fresh.map(compare, runs), strict=True):
        for name, speed in speeds.items():
            print(f"w = {width}, b = {batch_size}: {name} {speed:.0f} images/s, {speed / speeds['plain']:.2f} × plain", flush=True)
            rows.append(dict(width=width, batch_size=batch_size, recipe=name, images_per_second=round(speed, 1)))
    engine = prepare(preset("laptop"))
    n = 512 if QUICK else 4096
    facts = dict(processor=processor(), threads=torch.get_num_threads(), bf16=engine.bf16)
    facts |= dict(matrix_flops=matrix_flops(engine, n), bytes_per_second=memory_bandwidth(engine.device, n * 2**16))
    print(facts)
    if not QUICK:
        write("cpu-bf16" if engine.bf16 else "cpu-fp32", rows, **facts)
