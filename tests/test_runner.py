"""Sweeps: what is known is read, what is missing is trained once, one copy of the data answers."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from initmem import runner, store
from initmem.config import InitmemError, grid, preset

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


def test_lanes_hold_runs_that_differ_in_scale_alone():
    runs = RUNS + grid(TINY.replace(optimizer="adam"), sigma_w=[0.5, 1.0])
    groups = runner.lanes(runs, jobs=1)
    assert sorted(run.run_id("") for group in groups for run in group) == sorted(run.run_id("") for run in runs)
    for group in groups:
        assert len({run.replace(sigma_w=1.0) for run in group}) == 1
    assert max(map(len, groups)) == 3
    assert max(map(len, runner.lanes(RUNS, jobs=6))) == 1, "every process has work"


def test_a_run_that_raises_is_a_failed_row_and_the_sweep_goes_on(own_store, monkeypatch):
    real = runner.train_group

    def sometimes(group, threads, mark, parent=None):
        if group[0].seed == 0:
            raise MemoryError("no room")
        return real(group, threads, mark)

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


def test_bad_input_stops_before_anything_runs(own_store):
    with pytest.raises(InitmemError, match="no runs"):
        runner.sweep([])
    with pytest.raises(InitmemError, match="more than the 797"):
        runner.sweep([preset("digits").replace(train_size=790, epochs=1)], jobs=1, progress=False)
    with pytest.raises(InitmemError, match="cifar10"):
        runner.sweep([preset("laptop")], progress=False)


def test_a_killed_sweep_keeps_what_is_finished(own_store):
    """SIGKILL while training; then the same sweep trains only what is missing."""
    code = f"""
from initmem.config import *
from initmem import runner
runner.sweep(grid(Run(**{TINY.replace(epochs=30).model_dump()!r}), seed=range(6), sigma_w=[0.5, 1.0]), jobs=1)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 300
    while len(list(store.results_dir().glob("*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = store.read(shipped=False)
    assert len(kept) >= 2 and store.verify() == []
    again = runner.sweep(grid(TINY.replace(epochs=30), seed=range(6), sigma_w=[0.5, 1.0]), jobs=1, progress=False)
    assert len(again) == 12 and set(again["status"]) == {"finished"}
    merged = again.merge(kept, on="run_id", suffixes=("", "_before"))
    assert (merged["test_accuracy"] == merged["test_accuracy_before"]).all()
