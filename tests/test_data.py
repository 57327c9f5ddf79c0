"""Data sets: right values, one fingerprint for one content, a cache that survives, and errors one can act on."""

import errno
import hashlib
import http.server
import io
import os
import pickle
import random
import resource
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from initmem import data, download
from initmem.config import InitmemError, cache_dir

CIFAR10_JPEG = Path(__file__).parents[1] / "../shared/data/cifar10-jpeg.tar.xz"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
READERS_CACHE = cache_dir()  # before the fixture below hides it


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache for every test."""
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(path: Path, size=(8, 8), mode="RGB", seed=0, **save) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode in ("L", "I;16") else (size[1], size[0], 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint16 if mode == "I;16" else np.uint8)
    Image.fromarray(pixels).save(path, **save)
    return path


def tree(root: Path, classes=("cat", "dog"), splits=("train", "test"), each=3, **options) -> Path:
    """A folder of small pictures, each different: root/<split>/<class>/<number>.png."""
    seed = 0
    for split in splits:
        for name in classes:
            for number in range(each):
                seed += 1
                picture(root / split / name / f"{number}.png", seed=seed, **options)
    return root


def pack(folder: Path, archive: Path, mode="w", top="", shuffle=None) -> Path:
    """The folder's files as a tar archive, below `top`, in sorted or shuffled order."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if shuffle is not None:
        random.Random(shuffle).shuffle(files)
    with tarfile.open(archive, mode) as tar:
        for file in files:
            tar.add(file, top + file.relative_to(folder).as_posix())
    return archive


def one_sentence(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message and len(message) < 700
    return message


def contents(cache: Path) -> dict[str, bytes]:
    """Every file in the cache's data folder, hidden ones too."""
    root = cache / "data"
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


# ---- what is light


def test_import_is_light():
    heavy = "{'torch', 'torchvision', 'sklearn', 'PIL', 'pandas'}"
    code = f"import sys, initmem.data; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- right values


def test_digits_are_scikit_learns_in_a_fixed_order():
    from sklearn.datasets import load_digits

    digits = data.load("digits")
    assert digits.fingerprint == data.known_fingerprint("digits") == "dbd81a01c219e669"  # golden: results hang on it
    assert digits.train_images.shape == (797, 8, 8, 1) and digits.test_images.shape == (1000, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8 and digits.train_labels.dtype == np.int64
    assert digits.classes == tuple("0123456789")
    assert set(digits.train_labels) == set(digits.test_labels) == set(range(10))
    order = np.random.default_rng(0).permutation(1797)
    assert digits.test_labels.tolist() == load_digits().target[order[-1000:]].tolist()
    images = np.concatenate([digits.train_images, digits.test_images])[..., 0]
    original = load_digits().images
    assert images.max() == 255 and abs(images.mean() - original.mean() * 255 / 16) < 0.1
    rows = np.round(original.reshape(1797, -1) * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, images)) == sorted(map(bytes, rows))  # every digit once, none invented
    with pytest.raises(ValueError):
        digits.train_images[0] = 0


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="Debian's Fashion-MNIST is not installed")
def test_fashion_mnist():
    fashion = data.add("fashion_mnist", FASHION_MNIST)
    assert fashion.train_images.shape == (60000, 28, 28, 1) and fashion.test_images.shape == (10000, 28, 28, 1)
    assert fashion.mean == pytest.approx([0.2860], abs=1e-4) and fashion.std == pytest.approx([0.3530], abs=1e-4)
    assert [fashion.classes[label] for label in fashion.train_labels[:2]] == ["Ankle boot", "T-shirt/top"]
    assert np.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert fashion.fingerprint == data.ORIGINALS["fashion_mnist"] and fashion.source == "Fashion-MNIST idx files"
    assert str(FASHION_MNIST) not in repr(fashion)
    assert data.verify("fashion_mnist").fingerprint == data.fetch("fashion_mnist").fingerprint  # nothing to download


def test_cifar10(monkeypatch):
    if (READERS_CACHE / "data" / "cifar10.arrow").is_file():
        monkeypatch.setenv("INITMEM_DATA", str(READERS_CACHE))
        cifar = data.load("cifar10")
    elif CIFAR10_JPEG.is_file():
        cifar = data.add("cifar10", CIFAR10_JPEG)  # the only slow test: about 20 s
    else:
        pytest.skip("no copy of CIFAR-10 here")
    assert cifar.source in ("cifar10-jpeg.tar.xz", "cifar-10-python.tar.gz")
    assert cifar.train_images.shape == (50000, 32, 32, 3) and cifar.test_images.shape == (10000, 32, 32, 3)
    assert cifar.classes[:3] == ("airplane", "automobile", "bird")
    assert np.bincount(cifar.train_labels).tolist() == [5000] * 10
    assert np.bincount(cifar.test_labels).tolist() == [1000] * 10
    assert cifar.mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-4)
    assert cifar.std == pytest.approx([0.2470, 0.2435, 0.2616], abs=3e-3)  # the JPEG copy is a little blurred
    allocated = pa.total_allocated_bytes()
    again = data.load("cifar10")
    assert pa.total_allocated_bytes() - allocated < 10**6 and not again.train_images.flags.writeable, "mapped, not read"


images = hnp.arrays(np.uint8, st.tuples(*[st.integers(1, 5)] * 3, st.sampled_from([1, 3])))


@given(images)
@settings(max_examples=60, deadline=None)
def test_mean_and_std_normalize(images):
    mean, std = data._mean_std(images)
    scaled = images / 255
    assert np.allclose(mean, scaled.mean((0, 1, 2)), atol=1e-12) and np.allclose(std, scaled.std((0, 1, 2)), atol=1e-9)
    varied = np.array(std) > 0
    normalized = ((scaled - mean) / np.where(varied, std, 1)).reshape(-1, images.shape[-1])[:, varied]
    assert np.allclose(normalized.mean(0), 0, atol=1e-9) and np.allclose(normalized.std(0), 1, atol=1e-6)


@given(images, st.data())
@settings(max_examples=40, deadline=None)
def test_fingerprint_sees_every_byte_and_name(images, draw):
    labels = np.arange(len(images))
    arrays = dict(zip(data.ARRAYS, (images, labels, images, labels)))
    before = data._fingerprint(arrays, ("a", "b"))
    assert before == data._fingerprint({name: array.copy(order="F") for name, array in arrays.items()}, ("a", "b"))
    assert before != data._fingerprint(arrays, ("a", "c"))
    name = draw.draw(st.sampled_from(list(arrays)))
    changed = arrays[name].copy()
    changed.flat[draw.draw(st.integers(0, changed.size - 1))] ^= 1
    assert before != data._fingerprint(arrays | {name: changed}, ("a", "b"))
    assert before != data._fingerprint(arrays | {"train_images": images.reshape(-1, 1, 1, 1)}, ("a", "b")) or (
        images.shape[1:] == (1, 1, 1)
    )


# ---- trees of images


def test_folder_values_labels_and_order(tmp_path):
    root = tree(tmp_path / "pets", classes=("dog", "cat"))
    pets = data.add("pets", root)
    assert pets.classes == ("cat", "dog")
    assert pets.train_labels.tolist() == pets.test_labels.tolist() == [0, 0, 0, 1, 1, 1]
    files = [root / "train" / name / f"{number}.png" for name in ("cat", "dog") for number in range(3)]
    for image, file in zip(pets.train_images, files, strict=True):
        assert np.array_equal(image, np.asarray(Image.open(file)))
    assert pets.source == "pets" and data.load("pets").fingerprint == data.known_fingerprint("pets") == pets.fingerprint
    assert not pets.train_images.flags.writeable and not pets.test_labels.flags.writeable
    assert pets.train_labels.dtype == np.int64


def test_one_content_one_fingerprint(tmp_path):
    """Folder or archive, packed in any order, compressed or not, one folder deeper or not, with bystanders or not."""
    root = tree(tmp_path / "pets")
    fingerprint = data.add("pets", root).fingerprint
    for number, (mode, top) in enumerate([("w", ""), ("w:gz", "pets/"), ("w:bz2", "./"), ("w:xz", "./pets/")]):
        archive = pack(root, tmp_path / f"pets-{number}.tar", mode, top, shuffle=number)
        assert data.add("packed", archive).fingerprint == fingerprint, (mode, top)
    assert data.load("packed").source == "pets-3.tar"
    (root / "README.txt").write_text("no image")
    (root / "train/cat/._0.png").write_bytes(b"what macOS leaves behind")
    picture(root / "train/cat/.ipynb_checkpoints/0-checkpoint.png")
    picture(root / "val/cat/0.png")
    (tmp_path / "deep").mkdir()
    root.rename(tmp_path / "deep" / "pets")
    assert data.add("deep", tmp_path / "deep").fingerprint == fingerprint
    picture(tmp_path / "deep/pets/train/cat/more/9.png", seed=99)
    assert data.add("deep", tmp_path / "deep").fingerprint != fingerprint


def test_linked_folders_are_followed(tmp_path):
    root = tree(tmp_path / "pets")
    fingerprint = data.add("pets", root).fingerprint
    (root / "train/cat").rename(tmp_path / "cats")
    (root / "train/cat").symlink_to(tmp_path / "cats")
    (tmp_path / "linked").symlink_to(root)
    assert data.add("pets", tmp_path / "linked").fingerprint == fingerprint
    assert data.load("pets").source == "linked"


def test_grey_stays_grey_unless_mixed_with_colour(tmp_path):
    grey = data.add("grey", tree(tmp_path / "grey", mode="L"))
    assert grey.train_images.shape == (6, 8, 8, 1) and len(grey.mean) == len(grey.std) == 1
    picture(tmp_path / "grey/train/cat/1.png", mode="RGB", seed=7)
    mixed = data.add("mixed", tmp_path / "grey")
    assert mixed.train_images.shape == (6, 8, 8, 3)
    first = Image.open(tmp_path / "grey/train/cat/0.png").convert("RGB")
    assert np.array_equal(mixed.train_images[0], np.asarray(first))


def test_palette_and_transparent_pictures_become_rgb(tmp_path):
    root = tree(tmp_path / "pets")
    first, second = root / "train/cat/0.png", root / "train/cat/1.png"
    Image.open(first).convert("RGBA").save(first)
    Image.open(second).convert("P").save(second)
    expected = [np.asarray(Image.open(file).convert("RGB")) for file in (first, second)]
    assert np.array_equal(data.add("pets", root).train_images[:2], expected)


def test_pictures_wider_than_high_keep_their_shape(tmp_path):
    assert data.add("wide", tree(tmp_path / "wide", size=(12, 9))).train_images.shape == (6, 9, 12, 3)


def test_adding_again_replaces(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))  # a last step across disks would not be atomic
    first = data.add("pets", tree(tmp_path / "one"))
    kept = first.train_images[0].copy()
    second = data.add("pets", tree(tmp_path / "two", each=4))
    assert second.fingerprint != first.fingerprint and data.load("pets").fingerprint == second.fingerprint
    assert len(data.load("pets").train_images) == 8
    assert np.array_equal(first.train_images[0], kept)  # whoever still reads the earlier copy keeps it


def unsafe(member: tarfile.TarInfo, content=b"", announced=None):
    """A good archive with one more member, which may announce more than it has."""

    def build(folder: Path) -> Path:
        archive = pack(tree(folder / "pets"), folder / "pets.tar")
        with tarfile.open(archive, "a") as tar:
            tar.addfile(member, io.BytesIO(content))
            if announced:
                tar.fileobj.seek(tar.offset - tarfile.BLOCKSIZE)
                tar.fileobj.write(info(member.name, size=announced).tobuf())
        return archive

    return build


def info(name: str, **fields) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member


def written(name: str, content: bytes):
    def build(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return build


def changed(change, **options):
    """A good tree after `change(root)`."""

    def build(folder: Path) -> Path:
        root = tree(folder / "pets", **options)
        change(root)
        return root

    return build


def cut(mode: str, keep: float):
    def build(folder: Path) -> Path:
        archive = pack(tree(folder / "pets", size=(200, 200)), folder / "pets.tar", mode)
        content = archive.read_bytes()
        archive.write_bytes(content[: int(len(content) * keep)])
        return archive

    return build


def broken_header(folder: Path) -> Path:
    archive = pack(tree(folder / "pets"), folder / "pets.tar")
    with tarfile.open(archive) as tar:
        offset = tar.getmembers()[5].offset
    with archive.open("r+b") as stream:
        stream.seek(offset)
        stream.write(b"\xff" * 300)
    return archive


BROKEN = {
    "nothing there": (lambda folder: folder / "nowhere", "does not exist"),
    "neither folder nor archive": (written("pets.zip", b"PK\3\4 and so on"), "neither a folder nor a tar archive"),
    "empty file": (written("pets.tar", b""), "neither a folder nor a tar archive"),
    "truncated tar": (cut("w", 0.5), "truncated or damaged"),
    "truncated gz": (cut("w:gz", 0.5), "truncated or damaged"),
    "truncated bz2": (cut("w:bz2", 0.9), "truncated or damaged"),
    "truncated xz": (cut("w:xz", 0.9), "truncated or damaged"),
    "broken header midway": (broken_header, "truncated or damaged"),
    "no images": (written("README", b""), "neither"),
    "empty folder": (lambda folder: folder, "no images"),
    "images not in classes": (changed(lambda root: picture(root / "train/0.png"), splits=()), "no images where"),
    "no test": (changed(lambda root: None, splits=("train",)), "no images in test/"),
    "no train": (changed(lambda root: None, splits=("test",)), "no images in train/"),
    "two trees": (changed(lambda root: tree(root / "more")), "more than one train/"),
    "one class": (changed(lambda root: None, classes=("cat",)), "only one class, 'cat'"),
    "class only in train": (changed(lambda root: picture(root / "train/emu/0.png")), "'emu' in train/ but not in"),
    "class only in test": (changed(lambda root: picture(root / "test/emu/0.png")), "'emu' in test/ but not in"),
    "unprintable class": (changed(lambda root: None, classes=("cat", "d\x1b[2Jog")), r"'d\x1b[2Jog'"),
    "not an image": (changed(lambda root: (root / "test/dog/1.png").write_bytes(b"oops")), "'test/dog/1.png' in"),
    "cut image": (
        changed(lambda root: (f := picture(root / "test/dog/1.jpg", (64, 64))).write_bytes(f.read_bytes()[:900])),
        "'test/dog/1.jpg'",
    ),
    "dangling link": (changed(lambda root: (root / "train/cat/9.png").symlink_to("nowhere")), "'train/cat/9.png'"),
    "circular link": (changed(lambda root: (root / "train/cat/on").symlink_to(root)), "on is a link to a folder"),
    "circle of two links": (
        changed(
            lambda root: [
                (root / "train/cat/on").symlink_to(root / "test/cat"),
                (root / "test/cat/on").symlink_to(root / "train/cat"),
            ]
        ),
        "test/cat/on/on is a link to a folder that it lies in",
    ),
    "another format in disguise": (
        changed(lambda root: Image.new("L", (8, 8)).save(root / "train/cat/0.png", format="GIF")),
        "it is damaged, or none of JPEG, PNG",
    ),
    "16 bits": (changed(lambda root: picture(root / "train/cat/1.png", mode="I;16")), "more than 8 bits"),
    "mixed sizes": (
        changed(lambda root: picture(root / "train/dog/1.png", (9, 10))),
        "'train/dog/1.png' is 9×10, those before it are 8×8, so resize",
    ),
    "too small": (changed(lambda root: None, size=(8, 7)), "images of 8×7 pixels, which the networks halve three times: give 8×8"),
    "too many classes": (changed(lambda root: None, classes=[f"c{n}" for n in range(257)], each=1), "holds 257 classes, but a"),
    "a device": (lambda folder: Path("/dev/zero"), "is neither a file nor a folder: give a folder or tar archive"),
    "a pipe for an image": (
        changed(lambda root: [(root / "train/cat/0.png").unlink(), os.mkfifo(root / "train/cat/0.png")]),
        "'train/cat/0.png' in",
    ),
    "absurd size": (unsafe(info("train/cat/a.png", size=0), announced=2**40), "'train/cat/a.png' has 1,099,511,627,776 bytes"),
    "constant": (
        changed(lambda root: [Image.new("L", (8, 8)).save(file) for file in root.glob("train/*/*.png")], mode="L"),
        "constant",
    ),
    "absolute member": (unsafe(info("/etc/passwd")), "'/etc/passwd' leaves the folder"),
    "climbing member": (unsafe(info("train/../../evil.png")), "'train/../../evil.png' leaves the folder"),
    "symbolic link": (unsafe(info("train/cat/a.png", type=tarfile.SYMTYPE, linkname="/etc/passwd")), "is a link"),
    "hard link": (unsafe(info("train/cat/a.png", type=tarfile.LNKTYPE, linkname="../../x")), "is a link"),
    "device": (unsafe(info("train/cat/a.png", type=tarfile.CHRTYPE)), "or device"),
    "bad image in archive": (unsafe(info("train/cat/a.png", size=4), b"oops"), "'train/cat/a.png'"),
}


@pytest.mark.parametrize("build, fragment", BROKEN.values(), ids=BROKEN)
def test_refused(tmp_path, cache, build, fragment):
    folder = tmp_path / "given"
    folder.mkdir()
    path = build(folder)
    with pytest.raises(InitmemError) as error:
        data.add("pets", path)
    message = one_sentence(error)
    assert fragment in message and path.stem in message
    assert " object at 0x" not in message and "<_io" not in message
    assert not (cache / "data").exists()
    assert data.known_fingerprint("pets") is None


@pytest.mark.parametrize("limit", [40, 20], ids=["twice the limit", "beyond"])
def test_decompression_bombs_are_refused(tmp_path, monkeypatch, limit):
    root = tree(tmp_path / "pets")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(InitmemError, match="cannot read image 'test/cat/0.png' .*decompression bomb"):
        data.add("pets", root)


@pytest.mark.parametrize("name", ["", "Pets", "-pets", "pets/../x", "..", "../x", "pets.1", "päts", "a b", "pets\n"])
def test_names(tmp_path, name):
    for call in (lambda: data.add(name, tree(tmp_path / "pets")), lambda: data.load(name)):
        with pytest.raises(InitmemError) as error:
            call()
        assert "is not allowed" in one_sentence(error)
    assert data.known_fingerprint(name) is None


def test_256_classes_are_the_most(tmp_path):
    pets = data.add("pets", tree(tmp_path / "pets", [f"c{n:03}" for n in range(256)], each=1))
    assert len(pets.classes) == 256 and pets.test_labels.max() == 255


def test_a_current_folder_that_was_deleted(tmp_path, monkeypatch):
    tree(tmp_path / "pets")
    code = (
        "import os, sys; from initmem import data; from initmem.config import InitmemError\n"
        "os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "for path in ('.', 'pets', '~nosuchuser/pets'):\n"
        "    try: data.add('pets', path)\n"
        "    except InitmemError as error: print(error)\n"
        "print(data.add('pets', sys.argv[2]).source)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "gone", tmp_path / "pets"], capture_output=True, text=True)
    assert done.stderr == "" and [line.split(":")[0] for line in done.stdout.splitlines()] == [
        ". lies in a current folder that was deleted", "pets does not exist", "~nosuchuser/pets does not exist", "pets",
    ]  # fmt: skip


def test_digits_cannot_be_replaced(tmp_path):
    with pytest.raises(InitmemError, match="choose another name"):
        data.add("digits", tree(tmp_path / "pets"))


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_a_builtin_name_keeps_its_shape(tmp_path, name):
    with pytest.raises(InitmemError, match="holds 2 classes of 8×8×3 images, but .* add it under another name"):
        data.add(name, tree(tmp_path / "pets"))


def test_a_tree_may_stand_for_cifar10(tmp_path):
    letters = tuple("abcdefghij")
    cifar = data.add("cifar10", tree(tmp_path / "cifar10-again", letters, each=1, size=(32, 32)))
    assert cifar.source == "cifar10-again" and cifar.train_images.shape == (10, 32, 32, 3)


# ---- the cache


def test_absent_sets_say_how_to_get_them():
    assert data.known_fingerprint("cifar10") is None and data.known_fingerprint("pets") is None
    with pytest.raises(InitmemError, match="`initmem data fetch cifar10` or `initmem data add cifar10 PATH`"):
        data.load("cifar10")
    with pytest.raises(InitmemError, match="did you mean 'cifar10'.*`initmem data add cifar PATH`"):
        data.load("cifar")
    with pytest.raises(InitmemError, match="unknown data set to fetch 'pets'"):
        data.fetch("pets")
    assert data.fetch("digits").name == "digits"


def test_available(tmp_path, cache):
    data.add("pets", tree(tmp_path / "pets"))
    data.add("ants", tree(tmp_path / "ants"))
    (cache / "data/ants.arrow").write_text("{")
    (cache / "data/.bees.1.part").write_text("")  # as an interrupted first `add` may leave it
    rows = {row["name"]: row for row in data.available()}
    assert list(rows) == ["digits", "cifar10", "fashion_mnist", "ants", "pets"]
    assert rows["digits"]["train"] == 797 and rows["digits"]["image"] == (8, 8, 1)
    assert rows["cifar10"]["source"] == "not fetched" and rows["cifar10"]["fingerprint"] is None
    assert rows["ants"]["source"] == "damaged"
    assert rows["pets"] == {
        "name": "pets",
        "source": "pets",
        "fingerprint": data.known_fingerprint("pets"),
        "train": 6,
        "test": 6,
        "image": (8, 8, 3),
        "classes": ("cat", "dog"),
        "where": str(cache / "data/pets.arrow"),
    }


def rewrite(change):
    def damage(file: Path):
        file.write_bytes(change(file.read_bytes()))

    return damage


def other(images="image", labels=pa.int64(), size=8 * 8 * 3, meta=None, batches=2):
    """An Arrow file that is whole, but not of a data set."""

    def build(file: Path):
        right = pa.ipc.open_file(pa.memory_map(str(file))).schema.metadata
        schema = pa.schema({images: pa.binary(size), "label": labels}, right if meta is None else meta)
        with pa.ipc.new_file(str(file), schema) as writer:
            for _ in range(batches):
                columns = [pa.array([bytes(size)] * 6, pa.binary(size)), pa.array([0] * 6).cast(labels)]
                writer.write_batch(pa.record_batch(columns, schema=schema))

    return build


DAMAGE = {
    "empty": rewrite(lambda content: b""),
    "cut": rewrite(lambda content: content[:-1]),
    "halved": rewrite(lambda content: content[: len(content) // 2]),
    "longer": rewrite(lambda content: content + b"x"),
    "not arrow": rewrite(lambda content: b"x" * len(content)),
    "another column": other(images="picture"),
    "another type": other(labels=pa.string()),
    "another shape": other(size=8 * 8),
    "one batch": other(batches=1),
    "no meta": other(meta={}),
    "half meta": other(meta={"initmem": b'{"source": "pets", "fing'}),
    "other meta": other(meta={"initmem": b"[]"}),
    "binary meta": other(meta={"initmem": b"\xff\0"}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(tmp_path, cache, damage):
    pets = data.add("pets", tree(tmp_path / "pets"))
    file = cache / "data/pets.arrow"
    damage(file)
    with pytest.raises(InitmemError) as error:
        data.load("pets")
    message = one_sentence(error)
    assert str(file) in message and "delete that file and run" in message
    assert data.add("pets", tmp_path / "pets").fingerprint == data.load("pets").fingerprint == pets.fingerprint


def test_no_flipped_byte_crashes_or_passes_verification(tmp_path, cache):
    """Where a byte is padding nothing may change; anywhere else it is found, and never ends the process."""
    pets, rng = data.add("pets", tree(tmp_path / "pets")), random.Random(0)
    file, found = cache / "data/pets.arrow", 0
    content = file.read_bytes()
    for place in rng.sample(range(len(content)), 400):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        try:
            again = data.verify("pets")
        except InitmemError:
            found += 1
        else:
            assert again.fingerprint == pets.fingerprint and np.array_equal(again.train_images, pets.train_images)
    assert found > 200


def test_verify_finds_what_load_cannot(tmp_path, cache):
    data.add("pets", tree(tmp_path / "pets"))
    assert data.verify("pets").name == "pets"
    file = cache / "data/pets.arrow"
    content = file.read_bytes()
    pixels = data.load("pets").test_images.tobytes()
    file.write_bytes(content.replace(pixels, pixels[:-1] + bytes([pixels[-1] ^ 1])))
    data.load("pets")
    with pytest.raises(InitmemError, match="no longer match"):
        data.verify("pets")
    pets = data.add("pets", tmp_path / "pets")
    std = str(pets.std[0])
    file.write_bytes(file.read_bytes().replace(std.encode(), ("0.5" + "0" * (len(std) - 3)).encode()))
    assert data.load("pets").std[0] == 0.5
    with pytest.raises(InitmemError, match="no longer match"):
        data.verify("pets")


def test_an_interrupted_add_leaves_the_earlier_copy(tmp_path, cache, monkeypatch):
    data.add("pets", tree(tmp_path / "one"))
    before = contents(cache)
    calls, batch = [], pa.record_batch

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batch(*arguments, **options)

    monkeypatch.setattr(pa, "record_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.add("pets", tree(tmp_path / "two", each=4))
    assert contents(cache) == before and os.listdir(cache / "data") == ["pets.arrow"]


def test_a_failed_last_step_leaves_the_earlier_copy(tmp_path, cache, monkeypatch):
    data.add("pets", tree(tmp_path / "one"))
    before = contents(cache)

    def failing(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(InitmemError, match="No space left on device.*INITMEM_DATA"):
        data.add("pets", tree(tmp_path / "two", each=4))
    assert before == contents(cache) and data.verify("pets")
    assert os.listdir(cache / "data") == ["pets.arrow"]


def run_at_once(code: str, *arguments: str, processes=3) -> list[str]:
    """The code in several Python processes at once; what each wrote to stderr."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(processes)]
    return [process.communicate()[1] for process in started]


def test_many_processes_may_decode_the_same(official, cache):
    """As the workers of a sweep do when only the archive is here."""
    archive, pixels, _ = official
    (cache / "downloads").mkdir(parents=True)
    archive.rename(cache / "downloads" / archive.name)
    md5 = data.MIRRORS["cifar10"][data.CIFAR_ARCHIVE][0]
    code = (
        "import sys; from initmem import data\n"
        "data.MIRRORS['cifar10'] = {data.CIFAR_ARCHIVE: (sys.argv[1], ())}\n"
        "for _ in range(10):\n"
        "    data.add('cifar10', sys.argv[2])\n"
        "    data.verify('cifar10')"
    )
    assert run_at_once(code, md5, cache / "downloads" / archive.name) == [""] * 3
    check(data.verify("cifar10"), pixels)


def test_readers_see_one_copy_or_the_next(tmp_path):
    root, stop = tree(tmp_path / "pets"), tmp_path / "stop"
    data.add("pets", root)
    code = (
        "import sys, pathlib; from initmem import data\n"
        "while not pathlib.Path(sys.argv[1]).exists(): data.verify('pets')"
    )
    errors: list[str] = []
    readers = threading.Thread(target=lambda: errors.extend(run_at_once(code, stop, processes=2)))
    readers.start()
    try:
        for number in range(80):
            picture(root / "train/cat/0.png", seed=100 + number)  # another content of the same shape
            data.add("pets", root)
    finally:
        stop.touch()
        readers.join()
    assert errors == ["", ""]


def test_no_room(tmp_path, cache):
    """A write that the system really refuses midway, by a limit on file sizes."""
    data.add("pets", tree(tmp_path / "one"))
    before = contents(cache)
    bigger = tree(tmp_path / "two", size=(64, 64))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InitmemError) as error:
            data.add("pets", bigger)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"cannot write into {cache / 'data' / 'pets.arrow'} (" in one_sentence(error) and "INITMEM_DATA" in str(error.value)
    assert contents(cache) == before and os.listdir(cache / "data") == ["pets.arrow"]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "file/cache"))
    for call in (lambda: data.add("pets", tree(tmp_path / "pets")), lambda: data.fetch("cifar10", progress=False)):
        with pytest.raises(InitmemError) as error:
            call()
        assert "cannot write into" in one_sentence(error) and "INITMEM_DATA" in str(error.value)
    assert data.load("digits").name == "digits"  # needs no cache
    assert data.known_fingerprint("cifar10") is None and len(data.available()) == 3


# ---- original files, from a folder or from mirrors


def official_cifar10(archive: Path) -> tuple[Path, np.ndarray]:
    """An archive laid out like the original, two images a batch; also its pixels as (12, 32, 32, 3)."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    files = {"batches.meta": {"label_names": list("abcdefghij")}}
    for number, name in enumerate(names):
        rows = pixels[2 * number : 2 * number + 2].transpose(0, 3, 1, 2).reshape(2, -1)
        files[name] = {"data": rows, "labels": [number, 9 - number]}
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            # The original was written by Python 2 with an older NumPy.
            raw = pickle.dumps(content, protocol=2).replace(b"numpy._core", b"numpy.core")
            tar.addfile(info(f"cifar-10-batches-py/{name}", size=len(raw)), io.BytesIO(raw))
    return archive, pixels


class Server:
    """A loopback server of one file. `cuts`: bytes after which each of the first connections breaks off."""

    def __init__(self, content: bytes, cuts=(), ranges=True):
        self.requests, cuts = [], list(cuts)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler):
                wanted = handler.headers.get("Range")
                self.requests.append(wanted)
                if not handler.path.startswith("/archive"):
                    return handler.send_error(404)
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and ranges else 0
                if start >= len(content):
                    return handler.send_error(416)
                handler.send_response(206 if start else 200)
                handler.send_header("Content-Length", str(len(content) - start))
                if start:
                    handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                handler.end_headers()
                handler.wfile.write(content[start : start + cuts.pop(0)] if cuts else content[start:])

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/archive"


@pytest.fixture
def serve():
    servers = []

    def start(*arguments, **options) -> Server:
        servers.append(Server(*arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.server.shutdown()
        server.server.server_close()


@pytest.fixture
def official(tmp_path, monkeypatch):
    """The bytes of a small stand-in for the official archive, whose checksum the package now expects."""
    archive, pixels = official_cifar10(tmp_path / data.CIFAR_ARCHIVE)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()

    def mirrors(*urls):
        monkeypatch.setitem(data.MIRRORS, "cifar10", {data.CIFAR_ARCHIVE: (md5, urls)})

    mirrors()
    return archive, pixels, mirrors


def check(cifar: data.Data, pixels: np.ndarray):
    assert cifar.source == "cifar-10-python.tar.gz" and cifar.classes == tuple("abcdefghij")
    assert np.array_equal(np.concatenate([cifar.train_images, cifar.test_images]), pixels)
    assert cifar.train_labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5] and cifar.test_labels.tolist() == [5, 4]


def test_published_checksums():
    """Those that torchvision expects, and no address without one."""
    datasets = pytest.importorskip("torchvision.datasets")
    CIFAR10, FashionMNIST = datasets.CIFAR10, datasets.FashionMNIST

    assert data.MIRRORS["cifar10"][CIFAR10.filename][0] == CIFAR10.tgz_md5
    assert CIFAR10.url in data.MIRRORS["cifar10"][CIFAR10.filename][1][1:]  # not the first: it is throttled
    assert dict(FashionMNIST.resources) == data.FASHION_MD5 and tuple(FashionMNIST.classes) == data.FASHION_CLASSES


@pytest.mark.parametrize("way", ["archive", "its folder", "downloads"])
def test_official_archive_from_here(official, cache, way):
    archive, pixels, _ = official
    if way == "downloads":
        (cache / "downloads").mkdir(parents=True)
        archive.rename(cache / "downloads" / archive.name)
        check(data.load("cifar10"), pixels)
        check(data.fetch("cifar10"), pixels)
    else:
        check(data.add("cifar10", archive if way == "archive" else archive.parent), pixels)


def test_fetch(official, serve, cache):
    archive, pixels, mirrors = official
    server = serve(archive.read_bytes())
    mirrors(server.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert (cache / "downloads/cifar-10-python.tar.gz").read_bytes() == archive.read_bytes()
    assert os.listdir(cache / "downloads") == ["cifar-10-python.tar.gz"]
    check(data.fetch("cifar10", progress=False), pixels)
    (cache / "data/cifar10.arrow").unlink()
    check(data.fetch("cifar10", progress=False), pixels)  # mended from the downloaded archive
    assert server.requests == [None]


def test_fetch_replaces_another_copy_of_the_name(official, serve, tmp_path):
    archive, pixels, mirrors = official
    data.add("cifar10", tree(tmp_path / "mine", tuple("abcdefghij"), each=1, size=(32, 32)))
    mirrors(serve(archive.read_bytes()).url)
    check(data.fetch("cifar10", progress=False), pixels)


def test_fetch_resumes_where_the_connection_broke(official, serve):
    archive, pixels, mirrors = official
    server = serve(archive.read_bytes(), cuts=[5000, 7000])
    mirrors(server.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert server.requests == [None, "bytes=5000-", "bytes=12000-"]


def test_fetch_resumes_at_the_next_mirror_and_the_next_call(official, serve, cache):
    archive, pixels, mirrors = official
    content = archive.read_bytes()
    failing = serve(content, cuts=[1000] * download.TRIES)
    mirrors(failing.url)
    with pytest.raises(InitmemError, match="connection lost after 3,000 of"):
        data.fetch("cifar10", progress=False)
    assert (cache / "downloads/cifar-10-python.tar.gz.part").stat().st_size == 3000
    working = serve(content)
    mirrors(serve(b"").url.replace("archive", "elsewhere"), working.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert working.requests == ["bytes=3000-"]


def test_fetch_from_a_server_without_ranges(official, serve):
    archive, pixels, mirrors = official
    server = serve(archive.read_bytes(), cuts=[5000], ranges=False)
    mirrors(server.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert server.requests == [None, "bytes=5000-"]


@pytest.mark.parametrize("left", [b"another file, " * 10, "whole"], ids=["a foreign part", "a whole part"])
def test_fetch_with_an_old_part(official, serve, cache, left):
    archive, pixels, mirrors = official
    (cache / "downloads").mkdir(parents=True)
    part = cache / "downloads/cifar-10-python.tar.gz.part"
    part.write_bytes(archive.read_bytes() if left == "whole" else left)
    server = serve(archive.read_bytes())
    mirrors(server.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert not part.exists() and server.requests == ([] if left == "whole" else ["bytes=140-", None])


def test_fetch_with_a_part_longer_than_the_file(official, serve, cache):
    archive, pixels, mirrors = official
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads/cifar-10-python.tar.gz.part").write_bytes(bytes(10**6))
    server = serve(archive.read_bytes())
    mirrors(server.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert server.requests == ["bytes=1000000-", None]


def test_fetch_passes_over_a_wrong_checksum(official, serve, cache):
    archive, pixels, mirrors = official
    wrong, right = serve(b"<html>please log in</html>"), serve(archive.read_bytes())
    mirrors(wrong.url, right.url)
    check(data.fetch("cifar10", progress=False), pixels)
    assert wrong.requests == [None] and right.requests == [None]


def test_a_wrong_file_in_downloads_is_fetched_anew(official, serve, cache):
    archive, pixels, mirrors = official
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads/cifar-10-python.tar.gz").write_bytes(b"half of it")
    with pytest.raises(InitmemError, match="incomplete or not the official CIFAR-10 archive"):
        data.load("cifar10")
    mirrors(serve(archive.read_bytes()).url)
    check(data.fetch("cifar10", progress=False), pixels)


def test_fetch_without_any_mirror(official, serve, cache):
    _, _, mirrors = official
    missing = serve(b"").url.replace("archive", "missing")
    wrong = serve(b"something else").url
    closed = serve(b"")
    closed.server.server_close()
    mirrors(missing, wrong, closed.url)
    with pytest.raises(InitmemError) as error:
        data.fetch("cifar10", progress=False)
    message = one_sentence(error)
    folder = str(cache / "downloads")
    for part in ("cifar-10-python.tar.gz", folder, missing, wrong, closed.url, "404", "wrong checksum"):
        assert part in message
    assert "`initmem data fetch cifar10`" in message
    assert not list((cache / "downloads").iterdir())


def test_nothing_a_stranger_wrote_is_unpickled(tmp_path, cache):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    raw = pickle.dumps(Evil())
    archive = tmp_path / data.CIFAR_ARCHIVE
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))):
            tar.addfile(info(f"cifar-10-batches-py/{name}", size=len(raw)), io.BytesIO(raw))
    with pytest.raises(InitmemError, match="incomplete or not the official CIFAR-10 archive"):
        data.add("cifar10", archive)
    renamed = archive.rename(tmp_path / "pets.tar.gz")
    with pytest.raises(InitmemError, match="no images"):
        data.add("cifar10", renamed)
    assert not (tmp_path / "owned").exists()


def test_foreign_idx_files_are_not_fashion_mnist(tmp_path):
    """MNIST's own files bear the same names."""
    import gzip

    for file in data.FASHION_MD5:
        shape = (20, 28, 28) if "images" in file else (20,)
        values = np.random.default_rng(0).integers(0, 10, shape, dtype=np.uint8)
        header = bytes([0, 0, 8, values.ndim]) + np.array(shape, ">u4").tobytes()
        (tmp_path / file).write_bytes(gzip.compress(header + values.tobytes()))
    with pytest.raises(InitmemError, match="not the original files of fashion_mnist"):
        data.add("fashion_mnist", tmp_path)
    file = tmp_path / "t10k-images-idx3-ubyte.gz"
    for content in (file.read_bytes()[:200], b"", gzip.compress(b"\0\0\x08\3"), gzip.compress(b"\xff" * 40)):
        file.write_bytes(content)
        with pytest.raises(InitmemError) as error:
            data.add("fashion_mnist", tmp_path)
        assert str(file) in one_sentence(error)


def test_digits_that_changed_are_refused(monkeypatch):
    monkeypatch.setitem(data.ORIGINALS, "digits", "0" * 16)
    with pytest.raises(InitmemError, match="results could not be compared"):
        data._digits.__wrapped__()


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InitmemError, match="scikit-learn, which is missing"):
        data._digits.__wrapped__()
    assert data.known_fingerprint("digits") == data.ORIGINALS["digits"]


def test_data_is_frozen(tmp_path):
    pets = data.add("pets", tree(tmp_path / "pets"))
    assert replace(pets, name="other").name == "other" and "memmap" not in repr(pets)
    with pytest.raises(AttributeError):
        pets.name = "other"
