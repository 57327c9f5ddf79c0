"""Many runs: what is known is read, what is missing is trained, and every finished run is stored at once."""

import hashlib
import importlib.util
import math
import numbers
import os
import platform
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from initmem import data, store
from initmem.cluster import add_mark
from initmem.config import InitmemError, Interrupted, Run, cache_dir

MAX_LANES = 12  # more give nothing further on digits
LANES_BELOW = 10**6  # batch × pixels × width² of a step; below it overhead rules and lanes pay (measured on digits: 2.5×, ResNet-56 3.4×)


def sweep(
    runs: Iterable[Run],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    threads: int | None = None,
    fresh: bool = False,
    progress: bool = True,
    on_rows: Callable[[list[dict]], None] = lambda rows: None,
) -> pd.DataFrame:
    """One row for each run, in order: read from shipped or stored results, trained where there are none.

    `jobs` processes of `threads` threads share the processors (default: chosen by the size of the network). Any
    concurrent.futures `executor` takes their place; `jobs` then says how many tasks it works on at once. `fresh` trains
    everything anew. `on_rows` is called with each group of rows that was trained, once it is stored. Rows of one table come from one copy of a data set. A run that raised, or whose process died twice,
    is a row of status `failed`, which is not stored. Raises InitmemError for bad input.
    """
    runs = _checked(runs, jobs, executor, threads)
    keys = store.read(columns=["run_id", "engine", "dataset", "data_fingerprint"])  # all else is read when it is needed
    missing = find_missing(runs, keys.head(0) if fresh else store.current(keys))
    rows = pd.DataFrame(_train(missing, jobs, executor, threads, progress, fresh, on_rows) if missing else [], columns=store.SCHEMA.names)
    known = rows.head(0) if fresh or len(missing) == len(runs) else store.current(store.read())
    known = known[~known["run_id"].isin(rows["run_id"])]  # those just trained are in the store by now
    everything = pd.concat([frame for frame in (known, rows) if len(frame)], ignore_index=True)
    copies = {name: choose_copy(name, runs, everything) for name in {run.dataset for run in runs}}
    wanted = [run.run_id(copies[run.dataset]) for run in runs]
    return everything.set_index("run_id", drop=False).loc[wanted].reset_index(drop=True)


def _checked(runs: Iterable[Run], jobs: object, executor: object, threads: object) -> list[Run]:
    """The runs, each once. Raises InitmemError for anything that cannot be swept."""
    if isinstance(runs, Run | str) or not isinstance(runs, Iterable):
        raise InitmemError(f"sweep takes a list of runs, not {str(runs)!r}: give it as [run], or build one with initmem.grid")
    runs = list(runs)
    if not runs:
        raise InitmemError("there are no runs to sweep: give at least one")
    for run in runs:
        if not isinstance(run, Run):
            raise InitmemError(f"{run!r} is not a run: build runs with initmem.preset and initmem.grid")
    for name, value in {"jobs": jobs, "threads": threads}.items():
        if value is not None and (not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1):
            raise InitmemError(f"{name} = {value!r} is not allowed: give a whole number of 1 or more")
    if executor is not None and not isinstance(executor, Executor):
        raise InitmemError(f"executor = {executor!r} is not allowed: give a concurrent.futures.Executor")
    return list(dict.fromkeys(runs))


def find_missing(runs: Sequence[Run], table: pd.DataFrame) -> list[Run]:
    """The runs that no row of the table answers for, one copy of each data set."""
    copies, known = {name: choose_copy(name, runs, table) for name in {run.dataset for run in runs}}, set(table["run_id"])
    return [run for run in runs if not copies[run.dataset] or run.run_id(copies[run.dataset]) not in known]


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


def _train(
    runs: Sequence[Run], jobs: int | None, executor: Executor | None, threads: int | None, progress: bool, fresh: bool,
    on_rows: Callable[[list[dict]], None],
) -> list[dict]:  # fmt: skip
    """Train runs in lanes and processes; store each as it finishes. Returns all rows, failed ones last."""
    _check_machine(runs, executor)
    cores = available_cores()
    jobs = jobs or (cores if all(is_tiny(run) for run in runs) else 1)
    groups = lanes(runs, jobs)
    jobs = min(jobs, len(groups))
    pool, parent = (executor, None) if executor else (Processes(jobs), os.getpid())
    threads = threads or (None if executor else max(1, cores // jobs))
    finished, failed, tasks = [], [], {}
    with tempfile.TemporaryDirectory() as folder, tqdm(
        total=sum(run.epochs for run in runs), unit="epoch", smoothing=0.05, disable=not progress, desc=f"training {len(runs)} runs"
    ) as bar:
        try:
            for index, group in enumerate(groups):
                mark, ids = Path(folder, str(index)), _ids(group)
                tasks[_submit(pool, group, ids, threads, str(mark), parent)] = group, ids, mark
            for task in _as_they_end(tasks, bar):
                rows = _rows(task, tasks[task][0])
                if rows[0]["status"] == "failed":
                    failed += rows
                    continue
                store.append(rows, replace=fresh)
                checkpoint_of(*tasks[task][:2]).unlink(missing_ok=True)  # not before it is stored
                finished += rows
                on_rows(rows)
        except (KeyboardInterrupt, CancelledError) as error:
            kind, word = (Interrupted, "stopped") if isinstance(error, KeyboardInterrupt) else (InitmemError, "the executor is lost")
            stored = len(finished)
            if not executor:  # its own processes also store what they reach on the way
                stored += sum(run.epochs <= _done(mark)[1] for task, (group, _, mark) in tasks.items() if not task.done() for run in group)
            raise kind(
                f"{word}: {stored} of {len(runs)} runs are finished and stored; the same command"
                f"{', without --fresh,' if fresh else ''} trains the other {len(runs) - stored}"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            if not executor:
                pool.shutdown()
    for row in failed:
        warnings.warn(f"run {row['run_id']} failed and is left out of the store: {row['error']}", stacklevel=3)
    return finished + failed


def _submit(pool: Executor, *arguments: object) -> Future:
    try:
        return pool.submit(train_group, *arguments)
    except RuntimeError as error:  # shut down, or broken before it began
        raise InitmemError(f"the executor takes no runs ({error}): give one that is open") from None


def _as_they_end(tasks: dict[Future, tuple[list[Run], list[str], Path]], bar: tqdm) -> Iterator[Future]:
    """Tasks as they end, finished before failed, so that a fault stops the sweep after they are stored. Moves the bar.

    The bar is about what this sweep trains: what a checkpoint brings is taken off its total, or the estimate would be too high.
    """
    pending, total = set(tasks), bar.total
    while pending:
        wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        done = {task for task in pending if task.done()}  # wait() overlooks a task that was cancelled without notice
        pending -= done
        yield from sorted(done, key=lambda task: task.cancelled() or task.exception() is not None)
        epochs = [_epochs(task, group, mark) for task, (group, _, mark) in tasks.items()]
        bar.total = total - sum(before for before, _ in epochs)
        bar.update(sum(done - before for before, done in epochs) - bar.n)


def _check_machine(runs: Sequence[Run], executor: Executor | None) -> None:
    """Say what is missing or wrong on this machine once, before any process starts."""
    if importlib.util.find_spec("torch") is None:
        raise InitmemError(
            f"{len(runs)} of these runs are neither shipped nor stored, and training them needs torch: "
            "install it with `pip install 'initmem[train]'`"
        )
    for name in {run.dataset for run in runs}:
        data.load(name)
    store.check_writable()
    if os.environ.get("INITMEM_DEVICE") and not executor:
        from initmem.engine import prepare

        prepare(runs[0])


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ids(group: Sequence[Run]) -> list[str]:
    """Ids of runs on the local copy of their data set."""
    return [run.run_id(data.known_fingerprint(run.dataset)) for run in group]


def _epochs(task: Future, group: Sequence[Run], mark: Path) -> tuple[int, int]:
    """Epochs behind a group over all its runs: when this sweep took it up, and now."""
    before, done = _done(mark)
    done = max(run.epochs for run in group) if task.done() else done
    return sum(min(before, run.epochs) for run in group), sum(min(done, run.epochs) for run in group)


def _done(mark: Path) -> tuple[int, int]:
    """The first and the last number of epochs that a group has marked."""
    try:
        lines = mark.read_text(encoding="ascii").split("\n")[:-1]  # what follows the last newline is half a line
    except FileNotFoundError:
        lines = []
    return (int(lines[0]), int(lines[-1])) if lines else (0, 0)


class Processes(Executor):
    """`jobs` processes, each behind a thread of its own.

    A process that dies (killed, out of memory) so takes no other with it; its task is tried once more in a new one.
    """

    def __init__(self, jobs: int):
        self.threads, self.own, self.pools, self.closed = ThreadPoolExecutor(jobs), threading.local(), [], False

    def submit(self, task: Callable, /, *arguments: object) -> Future:
        return self.threads.submit(self._attempt, task, *arguments)

    def _attempt(self, task: Callable, *arguments: object, again: bool = True) -> object:
        from loky import ProcessPoolExecutor  # unlike the standard library's, it needs no __main__ guard in a script

        if not hasattr(self.own, "pool"):
            self.own.pool = ProcessPoolExecutor(1)
            self.pools.append(self.own.pool)
        try:
            return self.own.pool.submit(task, *arguments).result()
        except BrokenExecutor:
            del self.own.pool
            if self.closed or not again:
                raise
        return self._attempt(task, *arguments, again=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes at once; their checkpoints keep what they had."""
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for pool in self.pools:
            pool.shutdown(wait=wait, kill_workers=True)


def _rows(task: Future, group: Sequence[Run]) -> list[dict]:
    """A task's records, or rows of status `failed` that name the error. Bad input stops the sweep."""
    error = task.exception()
    if isinstance(error, InitmemError | KeyboardInterrupt):
        raise error
    if isinstance(error, ImportError):  # it would fail for every run: a torch that is there but broken, say
        raise InitmemError(f"the training half cannot be loaded ({error}): install it with `pip install 'initmem[train]'`")
    if error is None:
        return task.result()
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, BrokenExecutor):
        reason = "its process died, as when it is killed or memory runs out: try fewer jobs"
    return [dict(run.model_dump(), run_id=name, status="failed", error=reason) for run, name in zip(group, _ids(group), strict=True)]


def is_tiny(run: Run) -> bool:
    """Whether overhead, not arithmetic, sets the time of a step, so that lanes pay."""
    height, width, _ = data_shape(run.dataset)[0]
    return run.batch_size * height * width * run.width**2 < LANES_BELOW


def data_shape(name: str) -> tuple[tuple[int, int, int], int]:
    """(H, W, C) and number of classes; of the sets that initmem knows also where they are not here yet."""
    known = {"digits": (8, 8, 1), **data.IMAGE_SHAPES}
    if name in known:
        return known[name], 10
    found = data.load(name)
    return found.train_images.shape[1:], len(found.classes)


def lanes(runs: Sequence[Run], jobs: int) -> list[list[Run]]:
    """Groups trained together, the longest first, few enough in each that every process has work.

    Scales and seeds of one recipe are lanes, side by side: every seed of a group at every scale of it. A run of fewer
    epochs is the beginning of a longer one, and is recorded on its way.
    """
    networks: dict[Run, list[Run]] = defaultdict(list)
    for run in runs:
        networks[run.replace(epochs=1)].append(run)
    scales: dict[tuple, set[float]] = defaultdict(set)  # of a recipe and seed, by the horizons
    for network, mine in networks.items():
        scales[network.replace(sigma_w=1.0), tuple(sorted({run.epochs for run in mine}))].add(network.sigma_w)
    seeds: dict[tuple, list[int]] = defaultdict(list)  # that share all this
    for (network, horizons), among in scales.items():
        seeds[network.replace(seed=0), horizons, tuple(sorted(among))].append(network.seed)

    groups = []
    for (recipe, horizons, among), together in seeds.items():
        most = min(MAX_LANES, math.ceil(len(networks) / jobs)) if is_tiny(recipe) else 1
        groups += [(recipe, horizons, block) for block in _blocks(together, among, most)]
    groups.sort(key=lambda group: -group[1][-1] * group[0].steps_per_epoch * math.prod(map(len, group[2])) * group[0].depth)
    if over := len(groups) % jobs:  # what would leave processes idle at the end is split among them
        last = [(recipe, horizons, part) for recipe, horizons, (own, among) in groups[-over:]
                for part in _blocks(own, among, math.ceil(len(own) * len(among) / (jobs // over)))]  # fmt: skip
        groups = groups[:-over] + last
    return [
        [run for scale in among for seed in own for run in networks[recipe.replace(sigma_w=scale, seed=seed)]]
        for recipe, _, (own, among) in groups
    ]


def _blocks(seeds: Sequence[int], scales: Sequence[float], most: int) -> list[tuple[Sequence[int], Sequence[float]]]:
    """Seeds × scales cut into as few blocks of at most `most` networks as whole cuts along one side allow, or by seed."""
    for parts in range(1, max(len(seeds), len(scales)) + 1):
        cuts = [[(seeds[part::parts], scales) for part in range(parts)], [(seeds, scales[part::parts]) for part in range(parts)]]
        largest = [max(len(own) * len(among) for own, among in blocks) for blocks in cuts]
        if min(largest) <= most:
            return [block for block in cuts[largest.index(min(largest))] if all(block)]
    return [block for seed in seeds for block in _blocks([seed], scales, most)]


def checkpoint_of(runs: Sequence[Run], run_ids: Sequence[str]) -> Path:
    """Where the state of a group in training is kept: the same place whether or not its shorter runs are known already."""
    longest = [name for run, name in zip(runs, run_ids, strict=True) if run.epochs == max(run.epochs for run in runs)]
    return cache_dir("checkpoints", hashlib.sha256(",".join(longest).encode()).hexdigest()[:16] + ".pt")


def train_group(
    runs: Sequence[Run], run_ids: Sequence[str], threads: int | None, mark: str | None, parent: int | None = None
) -> list[dict]:
    """Train one group of `lanes` in this process. `mark` gets a line an epoch: progress that crosses processes and machines.

    Raises InitmemError where this machine lacks the data set or has another copy of it than `run_ids` stand for. A
    process that a sweep made (`parent`) stores the shorter runs as it passes them. Once the sweep has gone it ends itself
    at the next epoch; the checkpoint keeps what it had.
    """
    import torch

    from initmem.train import train

    name = runs[0].dataset
    try:
        copy = data.load(name)
    except InitmemError as error:
        raise InitmemError(f"on {platform.node()}: {error}" if not parent else str(error)) from None
    if [run.run_id(copy.fingerprint) for run in runs] != list(run_ids):
        raise InitmemError(
            f"{platform.node()} has another copy of {name} ({copy.fingerprint}) or another version of initmem than the machine "
            "that sweeps: give every worker the same"
        )
    if threads:
        torch.set_num_threads(threads)

    def on_epoch(done: int) -> None:
        if parent and os.getppid() != parent:
            os._exit(1)
        if mark:
            add_mark(mark, done)

    def on_records(records: list[dict]) -> None:
        if parent:  # elsewhere, the sweep stores them with the longest
            store.append(records)

    return train(runs, copy, on_epoch=on_epoch, on_records=on_records, checkpoint=checkpoint_of(runs, run_ids))
