"""What both benchmarks share: random images, rates of the machine, and the table they leave in benchmarks/results."""

import json
import platform
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from initmem.data import Data
from initmem.engine import Engine

RESULTS = Path(__file__).parent / "results"


def random_data(images: int, shape: tuple[int, int, int] = (32, 32, 3)) -> Data:
    """A data set of random pixels: speed does not depend on them."""
    rng = np.random.default_rng(0)
    return Data(
        name="cifar10", source="random", fingerprint="random", classes=tuple("0123456789"),
        train_images=rng.integers(0, 256, (images + 1, *shape), dtype=np.uint8), train_labels=rng.integers(0, 10, images + 1),
        test_images=np.zeros((1, *shape), np.uint8), test_labels=np.zeros(1, np.int64),
        mean=(0.5,) * shape[2], std=(0.25,) * shape[2],
    )  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes, to the end of what it has started on a GPU."""
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def matrix_flops(engine: Engine, n: int) -> float:
    """Operations a second in a product of two n × n matrices, in the arithmetic of the engine: the best of several."""
    a = torch.randn(n, n, device=engine.device, dtype=torch.bfloat16 if engine.bf16 else torch.float32)
    return 2 * n**3 / min(timed(lambda: a @ a) for _ in range(8))


def memory_bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second read and written together, in copying `size` bytes: the best of several."""
    a = torch.zeros(size, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * size / min(timed(lambda: b.copy_(a)) for _ in range(8))


def processor() -> str:
    """Model of the processor."""
    try:
        return re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def write(name: str, rows: list[dict], **facts: object) -> None:
    """Leave the table as benchmarks/results/NAME.json, with the machine's model, the date and the versions."""
    RESULTS.mkdir(exist_ok=True)
    facts |= dict(date=datetime.now(UTC).strftime("%Y-%m-%d"), torch=torch.__version__, python=platform.python_version())
    (RESULTS / f"{name}.json").write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")
