"""Sweeps: what is known is read, what is missing is trained once, one copy of the data answers."""

import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from initmem import runner, store
from initmem.config import InitmemError, cache_dir, grid, preset

TINY = preset("digits").replace(epochs=1, train_size=64, val_size=32)
RUNS = grid(TINY, seed=[0, 1], sigma_w=[0.5, 1.0, 2.0])


def test_a_sweep_trains_what_is_missing_and_no_more(own_store, monkeypatch):
    first = runner.sweep(RUNS[:4], jobs=1, progress=False)
    trained = []
    real = runner.lanes
    monkeypatch.setattr(runner, "lanes", lambda runs, jobs: trained.extend(runs) or real(runs, jobs))
    second = runner.sweep(RUNS, jobs=1, progress=False)
    assert trained == RUNS[4:]
    assert list(second["sigma_w"]) == [run.sigma_w for run in RUNS]
    pd.testing.assert_frame_equal(first, second.head(4))
    runner.sweep(RUNS, progress=False)
    assert trained == RUNS[4:]


def test_rows_are_told_of_as_they_end(own_store):
    told = []

    def on_rows(rows):
        assert set(store.read(shipped=False)["run_id"]) >= {row["run_id"] for row in rows}, "stored before it is told"
        told.extend(row["run_id"] for row in rows)

    first = runner.sweep(RUNS[:1], jobs=1, progress=False, on_rows=on_rows)
    assert told == list(first["run_id"])
    both = runner.sweep(RUNS[:4], jobs=1, progress=False, on_rows=on_rows)
    assert sorted(told) == sorted(both["run_id"]), "each once, and none that was known"


def test_the_deepest_networks_go_first():
    runs = [TINY, *grid(TINY.replace(arch="resnet56", optimizer="adam")), TINY.replace(optimizer="adam")]
    assert runner.lanes(runs, jobs=3)[0][0].arch == "resnet56"


def test_fresh_leaves_known_rows_aside(own_store):
    known = runner.sweep(RUNS[:2], jobs=1, progress=False)
    store.append([known.iloc[0].to_dict() | dict(test_accuracy=0.123)])
    assert runner.sweep(RUNS[:2], progress=False)["test_accuracy"].iloc[0] == 0.123
    fresh = runner.sweep(RUNS[:2], jobs=1, fresh=True, progress=False)
    assert fresh["test_accuracy"].iloc[0] == known["test_accuracy"].iloc[0]


def test_processes_give_the_same_records_as_one(own_store, tmp_path, monkeypatch):
    one = runner.sweep(RUNS[:2], jobs=1, progress=False)
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "another"))
    two = runner.sweep(RUNS[:2], jobs=2, progress=False)  # a lane of two becomes two runs of one
    assert list(one["run_id"]) == list(two["run_id"])
    assert one["test_accuracy"].to_numpy() == pytest.approx(two["test_accuracy"].to_numpy(), abs=0.01)


def test_any_executor_will_do(own_store):
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        results = runner.sweep(RUNS[:2], executor=executor, progress=False)
    assert list(results["status"]) == ["finished"] * 2


def test_lanes_hold_every_seed_at_every_scale_of_one_recipe():
    runs = RUNS + grid(TINY.replace(optimizer="adam"), sigma_w=[0.5, 1.0])
    groups = runner.lanes(runs, jobs=1)
    assert sorted(run.run_id("") for group in groups for run in group) == sorted(run.run_id("") for run in runs)
    for group in groups:
        assert len({run.replace(sigma_w=1.0, seed=0) for run in group}) == 1
        assert len(group) == len({run.sigma_w for run in group}) * len({run.seed for run in group})
    assert list(map(len, groups)) == [6, 2]
    assert [len(group) for group in runner.lanes(grid(TINY, seed=range(3), sigma_w=range(1, 8)), jobs=1)] == [12, 9]
    assert [len(group) for group in runner.lanes(grid(TINY, seed=range(3), sigma_w=[1.0, 2.0]), jobs=2)] == [3, 3]
    assert [len(group) for group in runner.lanes(grid(TINY, seed=range(3), sigma_w=range(1, 8)), jobs=2)] == [7, 7, 4, 3]
    assert all(len(group) == 1 for group in runner.lanes(grid(preset("laptop"), seed=range(3), sigma_w=[1.0, 2.0]), jobs=2))
    scattered = [*grid(TINY, seed=[0, 1], sigma_w=[1.0, 2.0]), *grid(TINY, seed=[2], sigma_w=[1.0, 3.0])]
    groups = runner.lanes(scattered, jobs=1)
    assert sorted(run.run_id("") for group in groups for run in group) == sorted(run.run_id("") for run in scattered)
    assert max(map(len, runner.lanes(RUNS, jobs=6))) == 1, "every process has work"


def test_shorter_runs_are_recorded_on_the_way_of_the_longest(own_store):
    runs = grid(TINY, seed=[0, 1, 2], sigma_w=[0.5, 1.0], epochs=[1, 3])
    assert [len(group) for group in runner.lanes(runs, jobs=1)] == [12]
    assert [len(group) for group in runner.lanes(runs, jobs=2)] == [6, 6]
    laptop = grid(preset("laptop"), seed=[0], sigma_w=[0.5, 1.0], epochs=[1, 3])
    assert [[run.epochs for run in group] for group in runner.lanes(laptop, jobs=1)] == [[1, 3], [1, 3]]
    results = runner.sweep(runs, jobs=2, progress=False)
    assert list(results["epochs"]) == [run.epochs for run in runs]
    assert [len(curve) for curve in results["val_loss"]] == [run.epochs for run in runs]


def test_a_shorter_run_is_stored_once_it_is_passed_and_its_sweep_resumes(own_store):
    """Killed between two horizons: the first is kept as it is, the checkpoint is found though only the last is missing."""
    runs = grid(TINY, sigma_w=[0.5], epochs=[2, 400])
    process, deadline = start_sweep(runs, checkpoint_seconds=0, threads=1), time.monotonic() + 600
    while not list(store.results_dir().glob("[!.]*.parquet")) or not list(cache_dir("checkpoints").glob("[!.]*.pt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    [path] = store.results_dir().glob("*.parquet")
    content, seen = path.read_bytes(), []
    assert list(store.read(shipped=False)["epochs"]) == [2] and store.verify() == []

    class Watched(concurrent.futures.ThreadPoolExecutor):
        def submit(self, task, group, ids, threads, mark, parent):
            def work():
                rows = task(group, ids, threads, mark, parent)
                seen.extend(Path(mark).read_text().split())
                return rows

            return super().submit(work)

    with Watched(1) as executor:
        results = runner.sweep(runs, executor=executor, threads=1, progress=False)  # bits depend on the number of threads
    assert int(seen[0]) > 0 and int(seen[-1]) == 400, "it goes on from the checkpoint of both"
    assert path.read_bytes() == content and not list(cache_dir("checkpoints").glob("[!.]*"))
    whole = runner.sweep(runs, fresh=True, threads=1, progress=False)
    for (_, a), (_, b) in zip(results.iterrows(), whole.iterrows(), strict=True):
        assert [name for name in a.index if name not in ("wall_seconds", "date") and not np.array_equal(a[name], b[name])] == []


def test_a_row_of_a_store_is_replaced_by_a_fresh_one_alone(own_store):
    runs = grid(TINY, sigma_w=[0.5])
    runner.sweep(runs, progress=False)
    [path] = store.results_dir().glob("*.parquet")
    row, written = store.read(shipped=False).to_dict("records")[0], path.stat().st_mtime_ns
    store.append([row], replace=False)
    assert path.stat().st_mtime_ns == written
    runner.sweep(runs, fresh=True, progress=False)
    assert path.stat().st_mtime_ns > written


def test_the_bar_counts_what_is_trained_here_and_not_what_a_checkpoint_brings(tmp_path):
    mark, group, task = tmp_path / "mark", grid(TINY, epochs=[5, 20]), concurrent.futures.Future()
    assert runner._epochs(task, group, mark) == (0, 0)
    mark.write_text("7\n8\n9")  # the last line is being written
    assert runner._epochs(task, group, mark) == (5 + 7, 5 + 8)
    task.set_result([])
    assert runner._epochs(task, group, mark) == (5 + 7, 5 + 20)


def test_a_run_that_raises_is_a_failed_row_and_the_sweep_goes_on(own_store, monkeypatch):
    real = runner.train_group

    def sometimes(group, *arguments):
        if group[0].seed == 0:
            raise MemoryError("no room")
        return real(group, *arguments)

    monkeypatch.setattr(runner, "train_group", sometimes)
    with concurrent.futures.ThreadPoolExecutor(1) as executor, pytest.warns(UserWarning, match="MemoryError: no room"):
        results = runner.sweep(RUNS, executor=executor, progress=False)
    assert list(results["status"]) == ["failed"] * 3 + ["finished"] * 3
    assert len(store.read(shipped=False)) == 3


def test_one_copy_of_the_data_answers_for_a_sweep(own_store):
    """Rows from another copy serve only if they cover every run; else all comes from the local copy."""
    table = runner.sweep(RUNS[:2], jobs=1, progress=False)
    foreign = table.assign(
        data_fingerprint="elsewhere", run_id=[run.run_id("elsewhere") for run in RUNS[:2]], test_accuracy=0.5
    )
    assert runner.choose_copy("digits", RUNS[:2], pd.concat([table, foreign])) == table["data_fingerprint"].iloc[0]
    assert runner.choose_copy("digits", RUNS[:2], foreign) == "elsewhere"
    assert runner.choose_copy("digits", RUNS[:3], foreign) == table["data_fingerprint"].iloc[0]


BAD = [
    (RUNS[0], {}, "sweep takes a list of runs, not .*: give it as \\[run\\]"),
    ("digits", {}, "sweep takes a list of runs, not 'digits'"),
    (None, {}, "sweep takes a list of runs, not 'None'"),
    (["digits"], {}, "'digits' is not a run: build runs with initmem.preset"),
    ([[RUNS[0]]], {}, "is not a run"),
    ([], {}, "there are no runs to sweep"),
    (RUNS, dict(jobs=0), "jobs = 0 is not allowed: give a whole number of 1 or more"),
    (RUNS, dict(jobs=-2), "jobs = -2 is"),
    (RUNS, dict(jobs=1.5), "jobs = 1.5 is"),
    (RUNS, dict(jobs="2"), "jobs = '2' is"),
    (RUNS, dict(jobs=True), "jobs = True is"),
    (RUNS, dict(threads=0), "threads = 0 is"),
    (RUNS, dict(executor=4), "executor = 4 is not allowed: give a concurrent.futures.Executor"),
    (grid(TINY.replace(train_size=790)), {}, "more than the 797"),
    (grid(preset("laptop")), {}, "cifar10"),
]


@pytest.mark.parametrize(("runs", "options", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input_is_one_sentence(own_store, runs, options, message):
    with pytest.raises(InitmemError, match=message) as error:
        runner.sweep(runs, progress=False, **options)
    assert "\n" not in str(error.value) and not list(store.results_dir().glob("*.parquet"))


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta"])
def test_an_unknown_device_is_refused_before_a_process_starts(own_store, monkeypatch, name):
    monkeypatch.setenv("INITMEM_DEVICE", name)
    monkeypatch.setattr(runner, "Processes", None)
    with pytest.raises(InitmemError, match=f"INITMEM_DEVICE.* '{name}'.*: choose (from )?cpu"):
        runner.sweep(RUNS, progress=False)


def test_an_executor_that_is_closed_or_gives_up_is_one_sentence(own_store):
    closed = concurrent.futures.ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(InitmemError, match="the executor takes no runs .*: give one that is open"):
        runner.sweep(RUNS, executor=closed, progress=False)

    class GivesUp(concurrent.futures.Executor):
        def submit(self, task, group, *arguments):
            future = concurrent.futures.Future()
            if group[0].seed == 0:
                future.set_result(runner.train_group(group, *arguments))
            else:
                future.cancel()
            return future

    with pytest.raises(InitmemError, match="the executor is lost: 3 of 6 runs are finished and stored; the same command trains"):
        runner.sweep(RUNS, executor=GivesUp(), jobs=2, progress=False)
    assert len(store.read(shipped=False)) == 3


def die(group, *arguments):
    """Trains, but for the second seed its process is killed: always, or the first time only."""
    if group[0].seed == 1:
        first = store.results_dir().with_name("killed")
        if first.is_file():
            return real_train_group(group, *arguments)
        if first.parent.joinpath("once").exists():
            first.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return real_train_group(group, *arguments)


real_train_group = runner.train_group


def test_a_process_that_dies_costs_no_other_run(own_store, monkeypatch):
    """Twice dead: failed rows, and the others go on. Once: tried again, and all is there."""
    monkeypatch.setattr(runner, "train_group", die)
    with pytest.warns(UserWarning, match="its process died"):
        results = runner.sweep(RUNS, jobs=2, progress=False)
    assert list(results["status"]) == ["finished"] * 3 + ["failed"] * 3
    kept = store.read(shipped=False)
    assert len(kept) == 3 and store.verify() == []
    store.results_dir().with_name("once").touch()
    again = runner.sweep(RUNS, jobs=2, progress=False)
    assert store.results_dir().with_name("killed").exists() and list(again["status"]) == ["finished"] * 6
    assert set(kept["run_id"]) < set(again["run_id"])


def start_sweep(runs, jobs=1, checkpoint_seconds=60, threads=None):
    """The same sweep in a process group of its own."""
    code = f"""
from initmem import runner
from initmem.config import Run
real = runner.train_group
def train_group(*arguments):
    from initmem import train
    train.CHECKPOINT_SECONDS = {checkpoint_seconds}
    return real(*arguments)
runner.train_group = train_group
runner.sweep([Run(**fields) for fields in {[run.model_dump() for run in runs]!r}], jobs={jobs}, threads={threads}, progress=False)
"""
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.parametrize("moments, seeds", [((1, 5, 9), 16), pytest.param((1,) * 20, 60, marks=pytest.mark.slow)])
def test_a_killed_sweep_keeps_what_is_finished(own_store, moments, seeds):
    """SIGKILL at random moments; then the same sweep trains only what is missing, and no row has changed."""
    runs, rng = grid(TINY.replace(epochs=6), seed=range(seeds), sigma_w=[0.5, 1.0]), random.Random(0)
    kept = store.read(shipped=False)
    for more in moments:
        process, deadline = start_sweep(runs), time.monotonic() + 600
        while len(list(store.results_dir().glob("*.parquet"))) < len(kept) + more and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before, kept = kept, store.read(shipped=False)
        assert len(kept) >= len(before) + more and store.verify() == []
        both = before.merge(kept, on="run_id")
        assert len(both) == len(before) and both["wall_seconds_x"].equals(both["wall_seconds_y"]), "none was trained twice"
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        again = runner.sweep(runs, executor=executor, jobs=1, progress=False)
    assert len(again) == len(kept.merge(again, on="run_id")) + len(runs) - len(kept) and set(again["status"]) == {"finished"}
    assert not list(cache_dir("checkpoints").glob("*"))


def test_two_sweeps_at_once_share_a_store(own_store):
    runs = grid(TINY.replace(epochs=4), seed=range(4), sigma_w=[0.5, 1.0])
    both = [start_sweep(runs), start_sweep(runs[::-1])]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    assert len(store.read(shipped=False)) == len(runs) and store.verify() == []
    assert sorted(path.suffix for path in store.results_dir().iterdir()) == [".parquet"] * len(runs), "nothing half-written"
