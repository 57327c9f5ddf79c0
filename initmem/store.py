"""Results as Parquet: one row a run. Shipped results are read-only; the reader's own lie in their cache, a file a run.

A file is written beside its place and renamed into it, so it is whole or absent; pages carry checksums. A row is never
changed: a run trained anew replaces its own file alone.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from initmem.config import ENGINE_VERSION, InitmemError, Run, cache_dir, clear_leftovers, folder_from, replacing

MANY = 100  # files of results that are opened one by one; 5,000 would take more than ten seconds

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
_RUN_TYPES = {name: type(value) for name, value in Run(
    dataset="x", train_size=2, val_size=1, width=1, lr=1.0, batch_size=2, epochs=1
).model_dump().items()}  # fmt: skip
RUN_FIELDS = tuple(_RUN_TYPES)
RECIPE_FIELDS = tuple(name for name in RUN_FIELDS if name not in ("sigma_w", "seed"))  # what runs of one recipe share
_curve, _texts = pa.list_(pa.float32()), pa.list_(pa.string())
SCHEMA = pa.schema(
    [("run_id", pa.string()), ("engine", pa.int64())]
    + [(name, _TYPES[kind]) for name, kind in _RUN_TYPES.items()]
    + [
        ("status", pa.string()),  # finished, or diverged: a loss stopped being finite
        ("selected_epoch", pa.int64()),  # of the lowest validation loss; 0 if there was none
        *[(f"{prefix}test_{what}", pa.float64()) for prefix in ("", "last_") for what in ("loss", "accuracy")],
        *[(f"{part}_{what}", _curve) for part in ("train", "val") for what in ("loss", "accuracy")],  # per epoch
        ("norm", _curve),  # ‖W‖_F of all kernels, epochs + 1 values from initialization on
        ("layers", _texts),  # names of the kernels
        ("layer_norms", _curve),  # (epochs + 1) × layers, row by row
        ("layer_cosines", _curve),  # cosine of each kernel with its initial self, likewise
        ("predictions", pa.binary()),  # class of every test image at the selected checkpoint, one byte each
        ("last_predictions", pa.binary()),  # the same at the last
        ("data_source", pa.string()),
        ("data_fingerprint", pa.string()),
        ("package_version", pa.string()),
        ("torch_version", pa.string()),
        ("git_revision", pa.string()),
        ("device", pa.string()),
        ("threads", pa.int64()),
        ("precision_used", pa.string()),
        ("lanes", pa.int64()),  # runs trained side by side in one network
        ("wall_seconds", pa.float64()),  # this run's share
        ("date", pa.string()),
    ]
)


_CURVES = [f"{field.name}.list.element" for field in SCHEMA if field.type == _curve]
_PLAIN = [field.name if field.type != _texts else f"{field.name}.list.element" for field in SCHEMA if field.type != _curve]


def shipped_dir() -> Path:
    """Folder of the shipped results: in the checkout's book or inside the package; `INITMEM_SHIPPED` overrides."""
    override = folder_from("INITMEM_SHIPPED")
    if override and not override.is_dir():
        raise InitmemError(f"INITMEM_SHIPPED = {str(override)!r} is no folder: name one of Parquet files, or unset it")
    return override or book_dir() / "results"


def book_dir() -> Path:
    """Folder of the chapters and the ledger: beside the package in a checkout, inside it when installed."""
    here = Path(__file__).parent
    return next((path for path in (here.parent / "book", here / "book") if (path / "claims.yml").exists()), here / "book")


def results_dir() -> Path:
    """Folder of the reader's own results."""
    return cache_dir("results")


def read(shipped: bool = True, cached: bool = True, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """All rows at hand, shipped ones first and each run once. Raises InitmemError naming a file that cannot be read."""
    tables = [read_file(path, columns) for path in sorted(shipped_dir().glob("*.parquet"))] if shipped else []
    tables += _read_own(columns) if cached else []
    frame = pa.concat_tables(tables or [SCHEMA.empty_table().select(columns or SCHEMA.names)]).to_pandas()
    return frame.drop_duplicates("run_id", ignore_index=True) if "run_id" in frame else frame


def _read_own(columns: Sequence[str] | None) -> list[pa.Table]:
    """The reader's own rows: file by file, or from one copy of them all where they are many.

    The files alone count. A row of the copy holds only while its file is the very one it was taken from, so the copy may
    be behind, damaged or deleted at any moment, and any process may write it.
    """
    stamps = {}
    for path in sorted(results_dir().glob("*.parquet")):
        with contextlib.suppress(FileNotFoundError):  # moved away just now
            found = path.stat()
            stamps[path] = [found.st_ino, found.st_mtime_ns, found.st_size]
    late, tables, held, copy = list(stamps), [], {}, cache_dir("results-copy.parquet")
    if len(stamps) > MANY:
        with contextlib.suppress(Exception), pq.ParquetFile(copy, page_checksum_verification=True) as file:
            files = json.loads(file.schema_arrow.metadata[b"files"])  # name → stamp, rows; in the order of the rows
            if not file.schema_arrow.equals(SCHEMA):
                raise ValueError("an earlier version's")
            valid = [stamps.get(results_dir() / name) == stamp for name, (stamp, _) in files.items()]
            taken = {name: entry for (name, entry), holds in zip(files.items(), valid, strict=True) if holds}
            missing = [path for path in stamps if path.name not in taken]
            mask = pa.array(np.repeat(valid, [rows for _, rows in files.values()]))
            tables = [file.read(columns if len(missing) <= MANY else None).filter(mask)]
            late, held = missing, taken
    if len(late) <= MANY:
        return tables + [read_file(path, columns) for path in late]
    for path in late:
        tables.append(read_file(path))
        held[path.name] = [stamps[path], len(tables[-1])]
    table = pa.concat_tables(tables).combine_chunks()
    with contextlib.suppress(InitmemError):  # a full disk, say: it is only a copy
        _write(table.replace_schema_metadata({"files": json.dumps(held)}), copy)
    return [table.select(columns or SCHEMA.names)]


def read_file(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """One file of results, checked against the schema. Raises InitmemError if it is damaged or not ours."""
    if path.parent == results_dir():
        way_out = "move it away; its runs will be trained again and all others are kept"
    elif path.parent == shipped_dir():
        way_out = "restore it, with `git checkout` for one"
    else:
        way_out = "give a Parquet file written by `initmem results export`"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if file.schema_arrow.equals(SCHEMA):
                return file.read(columns)
            odd = [name for name in SCHEMA.names if name not in file.schema_arrow.names]
    except (FileNotFoundError, NotADirectoryError):
        reason = "does not exist"
    except PermissionError:
        reason = "may not be read"
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        why = (str(error) or type(error).__name__).splitlines()[0]
        reason = "is a folder" if path.is_dir() else f"is damaged or no Parquet file ({why})"
    else:
        reason = f"holds no results of initmem (it lacks {', '.join(odd[:3]) or 'the types'})"
    raise InitmemError(f"{path} {reason}: {way_out}") from None


def append(records: Iterable[dict], folder: Path | None = None, replace: bool = True) -> None:
    """Add rows to the reader's store, one file a run; without `replace` those already there stay.

    Raises InitmemError if the disk refuses; nothing is half-written.
    """
    for record in records:
        path = (folder or results_dir()) / f"{record['run_id']}.parquet"
        if replace or not path.exists():
            _write(pa.Table.from_pylist([record], SCHEMA), path)


def _write(table: pa.Table, path: Path) -> None:
    with replacing(path) as partial:
        pq.write_table(
            table, partial, compression="zstd", compression_level=9, write_page_checksum=True,
            use_dictionary=_PLAIN, use_byte_stream_split=_CURVES,  # by byte, smooth curves take half the room
        )  # fmt: skip


def check_writable() -> None:
    """Raise InitmemError now, before hours of training, if results could not be kept."""
    clear_leftovers()
    probe = results_dir() / ".probe.parquet"
    _write(SCHEMA.empty_table(), probe)
    probe.unlink(missing_ok=True)


def merge(paths: Sequence[Path]) -> int:
    """Take the rows of other files into the reader's store; rows already there stay. Returns how many were new."""
    records = [(path, record) for path in paths for record in read_file(Path(path)).to_pylist()]
    seen = set()
    for path, record in records:  # all are checked before any is written
        faults = _faults(record) or ["it is there twice"] * ((path, record["run_id"]) in seen)
        if faults:
            raise InitmemError(f"{path}: run {record['run_id']}: {faults[0]}; nothing was merged")
        seen.add((path, record["run_id"]))
    known, new = set(read(columns=["run_id"])["run_id"]), 0
    for _, record in records:
        if record["run_id"] not in known:
            append([record])
            known.add(record["run_id"])
            new += 1
    return new


def export(path: Path, where: pd.Series | None = None, shipped: bool = True) -> int:
    """Write all rows at hand (or those where the mask holds) to one file, sorted, so that equal rows give equal files."""
    path = Path(path)
    if path.resolve().parent in (shipped_dir().resolve(), results_dir().resolve()) and shipped:  # also behind links and ..
        raise InitmemError(f"{path} lies in a store of results: choose another folder to export to")
    if path.exists():
        try:
            read_file(path, ["run_id"])
        except InitmemError:
            raise InitmemError(f"{path} is there and holds no results of initmem: choose another name") from None
    frame = read(shipped=shipped)
    frame = frame[where] if where is not None else frame
    frame = frame.sort_values(["dataset", "arch", "optimizer", "lr", "weight_decay", "batch_size", "epochs", "precision", "seed", "sigma_w"])
    _write(pa.Table.from_pandas(frame, SCHEMA, preserve_index=False), Path(path))
    return len(frame)


def verify() -> list[str]:
    """Check every file at hand, row by row, and return one sentence for each fault found."""
    faults = []
    for path in sorted(p for folder in (shipped_dir(), results_dir()) for p in folder.glob("*.parquet")):
        try:
            rows = read_file(path).to_pylist()
        except InitmemError as error:
            faults.append(str(error))
            continue
        for row in rows:
            faults += [f"{path}: run {row['run_id']}: {fault}" for fault in _faults(row)]
        if len({row["run_id"] for row in rows}) < len(rows):
            faults.append(f"{path}: holds a run twice")
    return faults


def _faults(row: dict) -> list[str]:
    """What is missing or contradicts itself in one row."""
    try:
        run = Run(**{name: row[name] for name in RUN_FIELDS})
    except InitmemError as error:
        return [str(error)]
    if missing := [name for name, value in row.items() if value is None]:
        return [f"it lacks {', '.join(missing[:3])}"]
    epochs, layers = len(row["train_loss"]), len(row["layers"])
    checks = {
        f"its status is {row['status']!r}, neither 'finished' nor 'diverged'": row["status"] in ("finished", "diverged"),
        "its selected epoch is none of its own": 0 <= row["selected_epoch"] <= epochs,
        "its id does not match its fields": row["run_id"] == run.run_id(row["data_fingerprint"], row["engine"]),
        "its histories differ in length": all(
            len(row[name]) == epochs for name in ("train_accuracy", "val_loss", "val_accuracy")
        )
        and len(row["norm"]) == epochs + 1
        and len(row["layer_norms"]) == len(row["layer_cosines"]) == (epochs + 1) * layers,
        "it stopped early without diverging": row["status"] == "diverged" or epochs == run.epochs,
        "its predictions differ in number": len(row["predictions"]) == len(row["last_predictions"]) > 0,
        "an accuracy lies outside 0 to 1": all(0 <= row[name] <= 1 for name in ("test_accuracy", "last_test_accuracy")),
    }
    return [fault for fault, holds in checks.items() if not holds]


def current(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows computed under today's ENGINE_VERSION."""
    return frame[frame["engine"] == ENGINE_VERSION]
