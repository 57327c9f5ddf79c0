"""What a sweep costs beside the training: `python benchmarks/sweep.py [--quick]`.

Its own work as a share of the training time, one process and the same runs in both; the time to recognize known runs; the
memory of a run of the laptop preset. All in a folder of its own that is deleted afterwards. The table goes to
benchmarks/results/sweep.json; `--quick` is a rehearsal and leaves none.
"""

import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
from common import processor, timed, write

QUICK = "--quick" in sys.argv
SEEDS, KNOWN = (1, 500) if QUICK else (10, 5000)


def overhead() -> tuple[int, float]:
    """Runs swept in this process, and the share of the time in which nothing was trained."""
    from initmem import grid, preset, sweep

    runs = grid(preset("digits"), seed=range(SEEDS), sigma_w=[0.1, 0.6, 1.4, 2.5])
    with ThreadPoolExecutor(1) as executor:
        sweep(runs[:1], executor=executor, jobs=1, progress=False)  # loads torch and the data
        rows = []
        seconds = timed(lambda: rows.append(sweep(runs, executor=executor, jobs=1, threads=1, fresh=True, progress=False)))
    return len(runs), 1 - rows[0]["wall_seconds"].sum() / seconds


def recognize() -> tuple[float, float]:
    """Seconds to find that all of many runs are known, with a first run trained and the others made of it, and to read them."""
    from initmem import data, grid, preset, store, sweep
    from initmem.runner import find_missing

    run = preset("digits").replace(epochs=60)
    row = sweep([run], jobs=1, progress=False).iloc[0].to_dict()
    runs = grid(run, seed=range(1, KNOWN + 1))
    copy = data.known_fingerprint("digits")
    rows = [row | dict(seed=r.seed, run_id=r.run_id(copy)) for r in runs]
    store._write(pa.Table.from_pandas(pd.DataFrame(rows), store.SCHEMA, preserve_index=False), Path(os.environ["INITMEM_SHIPPED"], "known.parquet"))

    def known() -> None:
        keys = store.read(columns=["run_id", "engine", "dataset", "data_fingerprint"])
        assert not find_missing(runs, store.current(keys))

    return min(timed(known) for _ in range(3)), min(timed(lambda: sweep(runs, progress=False)) for _ in range(3))


def memory() -> float:
    """Peak memory in GiB of a process that trains one epoch of the laptop preset on images of random pixels, as many as CIFAR-10's."""
    code = (
        "from common import random_data; from initmem import preset; from initmem.train import train; import dataclasses, numpy as np\n"
        "data = random_data(49_999); data = dataclasses.replace(data, test_images=data.train_images[:10_000], test_labels=data.train_labels[:10_000])\n"
        "train([preset('laptop').replace(epochs=1)], data)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # Linux counts in KiB


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"INITMEM_DATA": folder, "INITMEM_SHIPPED": str(Path(folder, "shipped"))}
        Path(folder, "shipped").mkdir()
        peak = memory()  # first, while no other child has lived
        number, share = overhead()
        known, read = recognize()
    rows = [
        {"what": f"a sweep's own share of the time, {number} runs on digits", "measured": f"{100 * share:.1f} %"},
        {"what": f"{KNOWN:,} known runs recognized", "measured": f"{known:.2f} s"},
        {"what": "the same, with all their curves read", "measured": f"{read:.2f} s"},
        {"what": "most memory of a process that trains a run of laptop", "measured": f"{peak:.2f} GiB"},
    ]
    print(pd.DataFrame(rows).to_string(index=False))
    if not QUICK:
        write("sweep", rows, processor=processor())
