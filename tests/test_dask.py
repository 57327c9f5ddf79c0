"""A real scheduler and real workers, each a process on this machine: the same records, and nothing lost when one goes."""

import concurrent.futures
import gc
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra `cluster` is not installed")

from test_data import tree

from initmem import cluster, data, runner, store
from initmem.config import InitmemError, grid, preset

RUNS = grid(preset("digits").replace(epochs=6, train_size=64, val_size=32), lr=[0.001, 0.002, 0.003, 0.004], sigma_w=[0.5, 2.0])
PROVENANCE = {"wall_seconds", "date", "git_revision"}


class Cluster:
    """Processes of `dask scheduler` and `dask worker`; the address is read from what the scheduler says."""

    def __init__(self, folder):
        self.folder, self.workers = folder, []
        self.scheduler = self._start("scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard")
        self.address = self._read(self.scheduler, r"Scheduler at:\s+(tcp://\S+)")

    def add_worker(self, *options, **environment):
        folder = self.folder / f"worker-{len(self.workers)}"
        arguments = [self.address, "--host=127.0.0.1", "--nthreads=1", "--no-nanny", "--no-dashboard", f"--local-directory={folder}"]
        worker = self._start("worker", *arguments, *options, **environment)
        self._read(worker, r"(Registered to)")
        self.workers.append(worker)
        return worker

    def _start(self, kind, *arguments, **environment):
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments]
        log = self.folder / f"{kind}-{len(self.workers)}.log"
        process = subprocess.Popen(command, stderr=log.open("w"), env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
        process.log = log
        return process

    @staticmethod
    def _read(process, pattern):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if found := re.search(pattern, process.log.read_text()):
                return found[1]
            time.sleep(0.05)
        raise AssertionError(process.log.read_text())

    def stop(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@pytest.fixture
def dask_cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def sweep_on(address, runs=RUNS, **options):
    with cluster.dask(address, threads=1) as (executor, at_once):
        return runner.sweep(runs, executor=executor, jobs=at_once, threads=1, progress=False, **options)


def wait_for_rows(n):
    deadline = time.monotonic() + 60
    while len(list(store.results_dir().glob("*.parquet"))) < n:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_same_records_as_locally_though_a_worker_is_killed(own_store, dask_cluster, tmp_path, monkeypatch):
    dask_cluster.add_worker("--resources", "threads=1")
    dask_cluster.add_worker("--resources", "threads=1")
    with cluster.dask(dask_cluster.address, threads=1) as (_, at_once):
        assert at_once == 2
    with pytest.raises(InitmemError, match="has 4 threads for a task"), cluster.dask(dask_cluster.address, threads=4):
        pass
    killed, real = [], store.append

    def append(rows, **options):
        real(rows, **options)
        if not killed:  # in mid-sweep: the other worker takes over
            killed.append(dask_cluster.workers[0])
            killed[0].kill()

    monkeypatch.setattr(store, "append", append)
    marks, mark = [], cluster.add_mark
    monkeypatch.setattr(cluster, "add_mark", lambda path, done: marks.append(done) or mark(path, done))
    there = sweep_on(dask_cluster.address)
    assert killed[0].wait() and len(store.read(shipped=False)) == len(RUNS)
    assert len(marks) >= 7 * 4 - 7 and set(marks) == set(range(7)), "every epoch of a worker is reported here"
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "here"))
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        here = runner.sweep(RUNS, executor=executor, jobs=2, threads=1, progress=False)
    for (_, a), (_, b) in zip(here.iterrows(), there.iterrows(), strict=True):
        assert [name for name in a.index if name not in PROVENANCE and not np.array_equal(a[name], b[name])] == []


def test_a_lost_scheduler_and_a_lost_client_cost_nothing_that_is_finished(own_store, dask_cluster, tmp_path):
    dask_cluster.add_worker()
    code = f"""
import sys, time
from initmem import cluster, runner
from initmem.config import Run
runs = [Run(**fields) for fields in {[run.model_dump() for run in RUNS]!r}]
with cluster.dask(sys.argv[1], threads=1) as (executor, at_once):
    runner.sweep(runs, executor=executor, jobs=at_once, threads=1, progress=False, on_rows=lambda rows: time.sleep(60))
"""
    client = subprocess.Popen([sys.executable, "-c", code, dask_cluster.address])
    wait_for_rows(2)
    client.kill()
    client.wait()
    kept = store.read(shipped=False)
    assert len(kept) == 2 and store.verify() == []
    more = grid(RUNS[0].replace(epochs=20), lr=[rate / 1000 for rate in range(20, 30)])
    begun, real = [], store.append

    def append(rows, **options):
        real(rows, **options)
        begun.extend(rows)
        if len(begun) > len(RUNS) - len(kept):
            dask_cluster.scheduler.kill()

    store.append = append
    try:
        with pytest.raises(InitmemError, match=r"the executor is lost: \d+ of \d+ runs are finished and stored; the same command"):
            sweep_on(dask_cluster.address, [*RUNS, *more])
    finally:
        store.append = real
    rows = store.read(shipped=False)
    assert len(begun) > len(RUNS) - len(kept) and len(rows) == len(kept) + len(begun) and store.verify() == []
    assert set(kept["run_id"]).isdisjoint(row["run_id"] for row in begun), "stored rows are not trained again"


def test_a_worker_without_the_data_or_with_another_copy_says_so(own_store, dask_cluster, tmp_path):
    data.add("mine", tree(tmp_path / "pictures"))
    elsewhere = tmp_path / "elsewhere"
    dask_cluster.add_worker(INITMEM_DATA=str(elsewhere))
    run = RUNS[0].replace(dataset="mine", train_size=4, val_size=2, batch_size=2)
    with pytest.raises(InitmemError, match="^on .*: unknown data set 'mine'.*`initmem data add mine"):
        sweep_on(dask_cluster.address, [run])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INITMEM_DATA", str(elsewhere))
        data.add("mine", tree(tmp_path / "others", each=4))
    with pytest.raises(InitmemError, match="has another copy of mine .*: give every worker the same"):
        sweep_on(dask_cluster.address, [run])
    assert not list(store.results_dir().glob("*.parquet"))


def test_nobody_answers_within_seconds():
    started = time.monotonic()
    for address in ("tcp://127.0.0.1:9", "nonsense", "http://127.0.0.1:1", "127.0.0.1"):
        with pytest.raises(InitmemError, match=f"no Dask scheduler answers at '{address}'"), cluster.dask(address):
            pass
    assert time.monotonic() - started < 20


def test_a_client_that_found_nobody_is_gone_at_once():
    """Collected later, it closes when it likes: while another client starts, both wait for one lock for ever."""
    from distributed import Client

    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if type(thing) is Client}
    gc.disable()
    try:
        with pytest.raises(InitmemError, match="no Dask scheduler answers"), cluster.dask("tcp://127.0.0.1:9"):
            pass
        assert {id(thing) for thing in gc.get_objects() if type(thing) is Client} <= before
    finally:
        gc.enable()


def test_without_distributed_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InitmemError, match="initmem\\[cluster\\]"), cluster.dask("tcp://127.0.0.1:8786"):
        pass


def test_a_scheduler_without_workers_says_so(dask_cluster):
    with pytest.raises(InitmemError, match="has no workers yet"), cluster.dask(dask_cluster.address):
        pass
