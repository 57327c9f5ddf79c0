"""Trees of image files, train/CLASS/* and test/CLASS/*, in a folder or a tar archive, decoded into arrays.

Nothing is ever unpacked or run: archives are read member by member, images by PIL and in common formats alone.
"""

import tarfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from tqdm import tqdm

from initmem.config import InitmemError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # no other: PIL hands PostScript to an interpreter
LARGEST = 2**30  # bytes of a member; a small archive may announce, and unroll to, any number
LAYOUT = "give train/<class>/* and test/<class>/*"

Entries = list[tuple[PurePosixPath, Callable[[], IO[bytes]]]]  # path below the root, and how to open it


def read_tree(path: Path) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Decode a folder or tar archive of images.

    Returns the class names in order and the arrays `train_images`, `test_images` (uint8, (N, H, W, C), C = 1 or 3) and
    `train_labels`, `test_labels` (int64, (N,)). Raises InitmemError for anything missing, unreadable, unequal or unsafe.
    """
    if path.is_dir():
        try:
            entries = [(PurePosixPath(file.relative_to(path)), partial(_open, file)) for file in _walk(path)]
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
            for member in archive:
                _refuse_unsafe(path, member)  # before what it announces is read
            archive.fileobj.seek(archive.offset)  # tarfile ends quietly at a broken header, a whole archive with zeros
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError("it has no end mark")
        except InitmemError:
            raise
        except Exception as error:  # each decompressor raises its own
            raise InitmemError(f"the archive {path} is truncated or damaged: {error}") from error
        # In the archive's own order, so that a compressed one is read straight through.
        files = [member for member in archive.getmembers() if member.isfile()]
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


def _open(file: Path) -> IO[bytes]:
    if not file.is_file():  # a pipe would be waited for, a device read for ever
        raise OSError("not a file")
    return file.open("rb")


def _refuse_unsafe(archive: Path, member: tarfile.TarInfo) -> None:
    """Nothing is ever unpacked, so these could do no harm; but an archive that has them is not what it seems."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InitmemError(f"the archive {archive} is refused: its member {member.name!r} leaves the folder")
    if not (member.isfile() or member.isdir()):
        raise InitmemError(
            f"the archive {archive} is refused: its member {member.name!r} is a link or device, not an image or folder"
        )
    if member.size > LARGEST:
        raise InitmemError(f"the archive {archive} is refused: its member {member.name!r} has {member.size:,} bytes")


def _decode_tree(path: Path, entries: Entries) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Find the images among the entries, check their classes, then decode them."""
    found, tops = {}, set()
    for entry, opener in entries:
        parts = entry.parts
        if entry.suffix.lower() not in SUFFIXES or any(part.startswith(".") for part in parts):
            continue  # hidden: macOS archives pair every file with a ._file, notebooks keep copies
        depth = next((depth for depth in (0, 1) if parts[depth : depth + 1] in (("train",), ("test",))), None)
        if depth is None or len(parts) < depth + 3:
            continue
        tops.add(parts[:depth])
        found[parts[depth:]] = entry, opener  # (split, class, ..., file)
    if not found:
        raise InitmemError(f"{path} holds no images where they are looked for: {LAYOUT}")
    if len(tops) > 1:
        raise InitmemError(f"{path} holds more than one train/ and test/: {LAYOUT}")
    classes = {split: sorted({key[1] for key in found if key[0] == split}) for split in ("train", "test")}
    for split, names in classes.items():
        if not names:
            raise InitmemError(f"{path} holds no images in {split}/: {LAYOUT}")
        if odd := [name for name in names if not name.isprintable()]:
            raise InitmemError(f"{path} holds a class name that is not plain text, {odd[0]!r}: rename its folder")
    if odd := sorted(set(classes["train"]) ^ set(classes["test"])):
        have, lack = ("train", "test") if odd[0] in classes["train"] else ("test", "train")
        raise InitmemError(f"{path} holds class {odd[0]!r} in {have}/ but not in {lack}/: both need the same classes")
    if len(classes["train"]) > 256:
        raise InitmemError(f"{path} holds {len(classes['train'])} classes, but a prediction is kept in one byte: give 256 at most")
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
        if min(size) < 8:
            raise InitmemError(
                f"{path} holds images of {size[1]}×{size[0]} pixels, which the networks halve three times: give 8×8 or larger"
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
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(), opener() as stream:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(stream, formats=FORMATS) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError("more than 8 bits a channel, convert it first")
                pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    except UnidentifiedImageError:  # its own words show the stream
        raise InitmemError(f"cannot read image {str(entry)!r} in {path}: it is damaged, or none of {', '.join(FORMATS)}") from None
    except Exception as error:  # whatever a parser of foreign files may raise
        raise InitmemError(f"cannot read image {str(entry)!r} in {path}: {error}") from error
    return pixels.reshape(*pixels.shape[:2], -1)
