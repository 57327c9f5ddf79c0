"""Many runs: what is known is read, what is missing is trained, and every finished run is stored at once."""

import hashlib
import importlib.util
import math
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from initmem import data, store
from initmem.config import InitmemError, Interrupted, Run, cache_dir

MAX_LANES = 8  # more give nothing further on digits
LANES_BELOW = 10**6  # batch × pixels × width² of a step; below it overhead rules and lanes pay (measured on digits: 2.5×, ResNet-56 3.4×)


def sweep(
    runs: Sequence[Run],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    fresh: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """One row for each run, in order: read from shipped or stored results, trained where there are none.

    `jobs` processes share the processors (default: chosen by the size of the network); any concurrent.futures
    `executor` takes their place. `fresh` trains everything anew. Rows of one table come from one copy of a data set.
    A run that raised is a row of status `failed`, which is not stored. Raises InitmemError for bad input.
    """
    runs = list(dict.fromkeys(runs))
    if not runs:
        raise InitmemError("there are no runs to sweep: give at least one")
    table = store.current(store.read()) if not fresh else store.read().head(0)
    fingerprints = {name: choose_copy(name, runs, table) for name in {run.dataset for run in runs}}
    ids = {run: run.run_id(fingerprints[run.dataset]) for run in runs if fingerprints[run.dataset]}
    known = set(table["run_id"])
    missing = [run for run in runs if ids.get(run) not in known]
    trained = _train(missing, jobs, executor, progress, fresh) if missing else []
    ids |= {Run(**{name: row[name] for name in store.RUN_FIELDS}): row["run_id"] for row in trained}
    rows = pd.DataFrame(trained, columns=store.SCHEMA.names)
    everything = pd.concat([frame for frame in (table, rows) if len(frame)], ignore_index=True)
    return everything.set_index("run_id", drop=False).loc[[ids[run] for run in runs]].reset_index(drop=True)


def choose_copy(name: str, runs: Sequence[Run], table: pd.DataFrame) -> str | None:
    """Fingerprint of the one copy of a data set that answers for these runs: stored in full, or else the local one."""
    mine = [run for run in runs if run.dataset == name]
    local = data.known_fingerprint(name)
    known = set(table["run_id"])
    copies = [local] if local else []
    copies += [copy for copy in table.loc[table["dataset"] == name, "data_fingerprint"].unique() if copy != local]
    for copy in copies:
        if all(run.run_id(copy) in known for run in mine):
            return copy
    return local


def _train(runs: Sequence[Run], jobs: int | None, executor: Executor | None, progress: bool, fresh: bool) -> list[dict]:
    """Train runs in lanes and processes; store each as it finishes."""
    if importlib.util.find_spec("torch") is None:
        raise InitmemError(
            f"{len(runs)} of these runs are neither shipped nor stored, and training them needs torch: "
            "install it with `pip install 'initmem[train]'`"
        )
    for name in {run.dataset for run in runs}:
        data.load(name)  # missing or damaged data is said here, once, before any process starts
    store.check_writable()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = jobs or (cores if all(is_tiny(run) for run in runs) else 1)
    groups = lanes(runs, jobs)
    jobs = min(jobs, len(groups))
    epochs = sum(run.epochs for run in runs)
    finished, failed = [], []
    with tempfile.TemporaryDirectory() as folder, tqdm(
        total=epochs, unit="epoch", smoothing=0.05, disable=not progress, desc=f"training {len(runs)} runs"
    ) as bar:
        marks = [Path(folder) / str(index) for index in range(len(groups))]
        pool, tasks = executor or _pool(jobs), {}
        try:
            tasks = {
                pool.submit(train_group, group, *([max(1, cores // jobs), mark, os.getpid()] if executor is None else [None, mark])): group
                for group, mark in zip(groups, marks, strict=True)
            }
            pending = set(tasks)
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for task in done:
                    rows = _rows(task, tasks[task])
                    (failed if rows[0]["status"] == "failed" else finished).extend(rows)
                    if rows[0]["status"] != "failed":
                        store.append(rows)
                        checkpoint_of([row["run_id"] for row in rows]).unlink(missing_ok=True)  # not before it is stored
                bar.update(sum(mark.stat().st_size * len(group) for mark, group in zip(marks, groups) if mark.exists()) - bar.n)
        except KeyboardInterrupt:
            left = len(runs) - len(finished)
            raise Interrupted(
                f"stopped: {len(finished)} of {len(runs)} runs are finished and stored; the same command"
                f"{', without --fresh,' if fresh else ''} trains the other {left}"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            if executor is None:
                pool.shutdown(wait=True, kill_workers=True)
    for row in failed:
        warnings.warn(f"run {row['run_id']} failed and is left out of the store: {row['error']}", stacklevel=3)
    return finished + failed


def _pool(jobs: int) -> Executor:
    from loky import ProcessPoolExecutor  # unlike the standard library's, it needs no __main__ guard in a script

    return ProcessPoolExecutor(jobs)


def _rows(task: Future, group: Sequence[Run]) -> list[dict]:
    """A task's records, or rows of status `failed` that name the error. Bad input stops the sweep."""
    error = task.exception()
    if isinstance(error, InitmemError):
        raise error
    if isinstance(error, ImportError):  # it would fail for every run: a torch that is there but broken, say
        raise InitmemError(f"the training half cannot be loaded ({error}): install it with `pip install 'initmem[train]'`")
    if error is None:
        return task.result()
    copy = data.known_fingerprint(group[0].dataset) or ""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return [dict(run.model_dump(), run_id=run.run_id(copy), status="failed", error=reason) for run in group]


def is_tiny(run: Run) -> bool:
    """Whether overhead, not arithmetic, sets the time of a step, so that lanes pay."""
    pixels = math.prod(data.load(run.dataset).train_images.shape[1:3])
    return run.batch_size * pixels * run.width**2 < LANES_BELOW


def lanes(runs: Sequence[Run], jobs: int) -> list[list[Run]]:
    """Groups trained side by side: runs that differ in sigma_w alone, few enough that every process has work."""
    together = defaultdict(list)
    for run in runs:
        together[run.replace(sigma_w=1.0)].append(run)
    groups = []
    for members in together.values():
        most = min(MAX_LANES, math.ceil(len(runs) / jobs)) if is_tiny(members[0]) else 1
        parts = math.ceil(len(members) / most)
        groups += [members[part::parts] for part in range(parts)]
    return groups


def checkpoint_of(run_ids: Sequence[str]) -> Path:
    """Where the state of a group in training is kept."""
    return cache_dir("checkpoints", hashlib.sha256(",".join(run_ids).encode()).hexdigest()[:16] + ".pt")


def train_group(runs: Sequence[Run], threads: int | None, mark: Path | None, parent: int | None = None) -> list[dict]:
    """Train one group in this process. `mark` grows by one byte an epoch: progress that crosses processes.

    A process whose `parent` has gone ends itself at the next epoch; the checkpoint keeps what it had.
    """
    import torch

    from initmem.train import train

    if threads:
        torch.set_num_threads(threads)
    copy = data.load(runs[0].dataset)

    def on_epoch() -> None:
        if parent and os.getppid() != parent:
            os._exit(1)
        if mark and mark.parent.exists():
            with mark.open("ab") as file:
                file.write(b".")

    return train(runs, copy, on_epoch=on_epoch, checkpoint=checkpoint_of([run.run_id(copy.fingerprint) for run in runs]))
