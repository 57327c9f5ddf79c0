"""The store: whole files or none, verified rows, and nothing lost when the disk refuses."""

import errno
import os
import resource
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from initmem import store
from initmem.config import InitmemError, preset


def record(**fields):
    """A well-formed row, without training anything."""
    run = preset("digits").replace(**{"epochs": 2, **fields})
    curve = [0.5, 0.25]
    return dict(
        run.model_dump(), run_id=run.run_id("copy"), engine=1, status="finished", selected_epoch=1,
        test_loss=0.1, test_accuracy=0.9, last_test_loss=0.1, last_test_accuracy=0.8,
        train_loss=curve, train_accuracy=curve, val_loss=curve, val_accuracy=curve, norm=[1.0, 2.0, 3.0],
        layers=["a", "b"], layer_norms=[1.0] * 6, layer_cosines=[1.0] * 6, predictions=b"\0\1", last_predictions=b"\0\1",
        data_source="test", data_fingerprint="copy", package_version="0", torch_version="0", git_revision="", device="cpu",
        threads=1, precision_used="fp32", lanes=1, wall_seconds=1.0, date="2026-01-01",
    )  # fmt: skip


def test_rows_come_back_as_they_were(own_store):
    store.append([record(seed=seed) for seed in range(3)])
    frame = store.read(shipped=False)
    assert sorted(frame["seed"]) == [0, 1, 2]
    row = frame[frame["seed"] == 1].iloc[0]
    assert row["test_accuracy"] == 0.9 and list(row["norm"]) == [1, 2, 3] and row["predictions"] == b"\0\1"
    assert store.verify() == []


def test_a_run_trained_anew_replaces_its_own_row_alone(own_store):
    store.append([record(seed=0), record(seed=1)])
    store.append([record(seed=0) | dict(test_accuracy=0.5)])
    frame = store.read(shipped=False)
    assert len(frame) == 2 and frame.set_index("seed").loc[0, "test_accuracy"] == 0.5


def test_merge_and_export_round_trip(own_store, tmp_path):
    store.append([record(seed=seed) for seed in range(3)])
    assert store.export(tmp_path / "all.parquet", shipped=False) == 3
    first = (tmp_path / "all.parquet").read_bytes()
    store.export(tmp_path / "all.parquet", shipped=False)
    assert (tmp_path / "all.parquet").read_bytes() == first, "equal rows give equal files"
    for path in store.results_dir().glob("*.parquet"):
        path.unlink()
    assert store.merge([tmp_path / "all.parquet"]) == 3
    assert store.merge([tmp_path / "all.parquet"]) == 0


@pytest.mark.parametrize("fault", ["truncated", "garbage", "foreign"])
def test_a_damaged_file_is_named_and_the_others_stay(own_store, fault):
    store.append([record(seed=0), record(seed=1)])
    path = sorted(store.results_dir().glob("*.parquet"))[0]
    content = path.read_bytes()
    if fault == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif fault == "garbage":
        path.write_bytes(b"no parquet at all")
    else:
        pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InitmemError, match=path.name) as found:
        store.read(shipped=False)
    assert any(path.name in sentence for sentence in store.verify())
    assert "move it away" in str(found.value) and "all others are kept" in str(found.value)
    path.unlink()
    assert len(store.read(shipped=False)) == 1


def test_no_flipped_byte_changes_what_is_read(own_store):
    """It is either noticed or it stood where nothing is read from."""
    store.append([record(seed=0)])
    [path] = store.results_dir().glob("*.parquet")
    content, whole, noticed = path.read_bytes(), store.read_file(path), 0
    for position in range(0, len(content), len(content) // 150):
        path.write_bytes(content[:position] + bytes([content[position] ^ 255]) + content[position + 1 :])
        try:
            assert store.read_file(path).equals(whole)
        except InitmemError:
            noticed += 1
    assert noticed > 50


@pytest.mark.parametrize("change", [
    dict(lr=0.5), dict(run_id="0" * 16), dict(norm=[1.0]), dict(train_loss=[1.0]), dict(test_accuracy=1.5), dict(predictions=b""),
    dict(status="done"), dict(status=""), dict(selected_epoch=-1), dict(selected_epoch=3),
])  # fmt: skip
def test_verify_finds_rows_that_contradict_themselves(own_store, change):
    store.append([record() | change])
    assert len(store.verify()) >= 1


@pytest.mark.parametrize("change", [dict(run_id="../outside"), dict(test_accuracy=7.0), dict(layers=None), dict(run_id=None)])
def test_rows_that_are_not_right_are_not_merged(own_store, tmp_path, change):
    pq.write_table(pa.Table.from_pylist([record(seed=1), record() | change], store.SCHEMA), tmp_path / "odd.parquet")
    with pytest.raises(InitmemError, match="odd.parquet.*nothing was merged"):
        store.merge([tmp_path / "odd.parquet"])
    assert store.read(shipped=False).empty


def test_a_run_that_a_file_holds_twice_is_not_merged(own_store, tmp_path):
    pq.write_table(pa.Table.from_pylist([record(), record() | dict(test_accuracy=0.5)], store.SCHEMA), tmp_path / "twice.parquet")
    with pytest.raises(InitmemError, match="twice.parquet: run .*it is there twice; nothing was merged"):
        store.merge([tmp_path / "twice.parquet"])
    assert store.read(shipped=False).empty


def test_exporting_replaces_no_store_and_no_file_of_others(own_store, tmp_path):
    """However the place is spelt; and a Parquet file that initmem did not write is as dear as any other."""
    store.append([record()])
    [own] = store.results_dir().glob("*.parquet")
    (tmp_path / "link").symlink_to(own.parent, target_is_directory=True)
    (tmp_path / "linked.parquet").symlink_to(own)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "theirs.parquet")
    before = own.read_bytes(), (tmp_path / "theirs.parquet").read_bytes()
    spelt = [own, own.parent / ".." / own.parent.name / own.name, tmp_path / "link" / own.name, tmp_path / "linked.parquet"]
    for place in [*spelt, store.shipped_dir() / "new.parquet", store.shipped_dir() / ".." / store.shipped_dir().name / "new.parquet"]:
        with pytest.raises(InitmemError, match="lies in a store of results: choose another folder"):
            store.export(place)
    with pytest.raises(InitmemError, match="theirs.parquet is there and holds no results of initmem: choose another name"):
        store.export(tmp_path / "theirs.parquet")
    assert before == (own.read_bytes(), (tmp_path / "theirs.parquet").read_bytes())


def test_what_a_killed_process_left_is_removed_after_an_hour(own_store):
    left = [store.cache_dir(folder, f".a{age}.1.part") for folder in ("results", "checkpoints", "data") for age in (0, 2)]
    resumable = store.cache_dir("downloads", "a.tar.gz.part")
    for path in [*left, resumable]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (time.time() - 3600 * (2 if path.name != ".a0.1.part" else 0),) * 2)
    store.check_writable()
    assert [path for path in [*left, resumable] if path.exists()] == [*left[::2], resumable]


def test_merging_a_damaged_file_changes_nothing(own_store, tmp_path):
    store.append([record(seed=5)])
    store.export(tmp_path / "good.parquet", shipped=False)
    (tmp_path / "bad.parquet").write_bytes(b"x")
    for path in store.results_dir().glob("*.parquet"):
        path.unlink()
    with pytest.raises(InitmemError, match="bad.parquet"):
        store.merge([tmp_path / "good.parquet", tmp_path / "bad.parquet"])
    assert store.read(shipped=False).empty


@pytest.mark.parametrize(("make", "says"), [
    (lambda path: None, "does not exist"),
    (lambda path: path.mkdir(), "is a folder"),
    (lambda path: path.write_bytes(b"x"), "is damaged or no Parquet file"),
    (lambda path: pq.write_table(pa.table({"run_id": ["a"]}), path), "holds no results of initmem .it lacks engine, dataset"),
])  # fmt: skip
def test_what_cannot_be_merged(own_store, tmp_path, make, says):
    make(tmp_path / "theirs.parquet")
    with pytest.raises(InitmemError, match=f"theirs.parquet {says}.*: give a Parquet file written by `initmem results export`"):
        store.merge([tmp_path / "theirs.parquet"])


def test_a_damaged_shipped_file_is_to_be_restored(own_store):
    (store.shipped_dir() / "laptop.parquet").write_bytes(b"x")
    with pytest.raises(InitmemError, match="laptop.parquet is damaged.*: restore it"):
        store.read()


@pytest.fixture
def many(own_store, monkeypatch):
    """A store that counts as large, and what tells how often a file of it is opened."""
    monkeypatch.setattr(store, "MANY", 3)
    store.append([record(seed=seed) for seed in range(8)])
    opened = []
    read_file = store.read_file
    monkeypatch.setattr(store, "read_file", lambda path, columns=None: opened.append(path) or read_file(path, columns))
    assert set(store.read(shipped=False)["seed"]) == set(range(8)) and len(opened) == 8
    opened.clear()
    return opened


def test_a_large_store_answers_from_one_copy(many):
    assert set(store.read(shipped=False)["seed"]) == set(range(8)) and not many
    whole = store.read(shipped=False)
    row = whole[whole["seed"] == 3].iloc[0]
    assert list(row["norm"]) == [1, 2, 3] and row["predictions"] == b"\0\1" and list(row["layers"]) == ["a", "b"]
    assert list(store.read(shipped=False, columns=["run_id", "seed"])) == ["run_id", "seed"] and not many
    assert store.verify() == [] and len(many) == 8, "verifying opens every file"


def test_the_copy_never_answers_for_another_file(many):
    [first, second, *_] = sorted(store.results_dir().glob("*.parquet"))
    store.append([record(seed=seed) | dict(test_accuracy=0.25) for seed in range(2)] + [record(seed=9)])
    frame = store.read(shipped=False).set_index("seed")
    assert len(many) == 3 and len(frame) == 9
    assert frame["test_accuracy"].to_dict() == {seed: 0.25 if seed < 2 else 0.9 for seed in frame.index}
    for path in sorted(store.results_dir().glob("*.parquet"))[:4]:
        path.unlink()
    assert len(store.read(shipped=False)) == 5
    bad = sorted(store.results_dir().glob("*.parquet"))[0]
    bad.write_bytes(b"x")
    with pytest.raises(InitmemError, match=bad.name):
        store.read(shipped=False)


def test_many_new_files_renew_the_copy(many):
    store.append([record(seed=seed) for seed in range(10, 20)])
    assert len(store.read(shipped=False, columns=["seed", "run_id"])) == 18 and len(many) == 10
    assert len(store.read(shipped=False)) == 18 and len(many) == 10


@pytest.mark.parametrize("content", [None, b"", b"PAR1 no PAR1"])
def test_the_copy_may_be_lost_at_any_moment(many, content):
    copy = store.cache_dir("results-copy.parquet")
    copy.unlink() if content is None else copy.write_bytes(content)
    assert len(store.read(shipped=False)) == 8 and len(many) == 8
    assert len(store.read(shipped=False)) == 8 and len(many) == 8, "it was written anew"


def test_where_no_copy_can_be_written_the_files_answer(many, monkeypatch):
    copy = store.cache_dir("results-copy.parquet")
    copy.unlink()
    copy.mkdir()
    for _ in range(2):
        assert len(store.read(shipped=False)) == 8
    assert len(many) == 16


def test_a_disk_that_is_really_full(own_store):
    """By a limit on the sizes of files: the system refuses midway."""
    store.append([record(seed=0)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
    try:
        with pytest.raises(InitmemError, match="cannot write .*INITMEM_DATA.*intact"):
            store.append([record(seed=1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.read(shipped=False)["seed"]) == [0] and not list(store.results_dir().glob(".*"))


@pytest.mark.parametrize("variable", ["INITMEM_DATA", "INITMEM_SHIPPED"])
def test_folders_that_lead_nowhere(own_store, monkeypatch, variable):
    monkeypatch.setenv(variable, "~nosuchuser/x")
    with pytest.raises(InitmemError, match=f"{variable} = '~nosuchuser/x' leads nowhere: give an absolute path"):
        store.read()
    monkeypatch.setenv("INITMEM_SHIPPED", str(own_store / "misspelt"))
    with pytest.raises(InitmemError, match="INITMEM_SHIPPED = .*misspelt' is no folder"):
        store.shipped_dir()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses(own_store, monkeypatch, number):
    store.append([record(seed=0)])

    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.pq, "write_table", refuse)
    with pytest.raises(InitmemError, match=f"cannot write .*{os.strerror(number)}.*INITMEM_DATA"):
        store.append([record(seed=1)])
    with pytest.raises(InitmemError):
        store.check_writable()
    with pytest.raises(InitmemError, match=f"{os.strerror(number)}.*choose another place"):
        store.export(own_store / "elsewhere.parquet")
    assert len(store.read(shipped=False)) == 1 and not list(store.results_dir().glob(".*"))


def test_a_store_where_no_folder_can_be(own_store, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(InitmemError, match="cannot write"):
        store.check_writable()


def test_shipped_results_are_in_order():
    assert [fault for fault in store.verify() if str(store.shipped_dir()) in fault] == []
    shipped = store.read(cached=False)
    assert len(shipped) and set(shipped["engine"]) == {store.ENGINE_VERSION}
    assert sum(path.stat().st_size for path in store.shipped_dir().glob("*")) < 30e6
