"""The page on one's own optimizer and images: its examples run as they stand."""

import re

import numpy as np
import pytest
from PIL import Image

from conftest import ROOT
from initmem import data, store

EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "book" / "extend.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_an_optimizer_of_ones_own(own_store, capsys):
    variables = {}
    exec(EXAMPLES[0].replace('.replace(optimizer="adam"', '.replace(epochs=2, optimizer="adam"'), variables)
    assert re.search(r"spread \d+\.\d .*\(n = 2\) pp, slope", capsys.readouterr().out)
    assert len(variables["results"]) == 6 and store.read(shipped=False).empty, "not taken for another's"


def test_an_optimizer_of_ones_own_is_the_one_that_trains(own_store):
    from initmem import grid, preset
    from initmem.train import train

    import torch

    [run] = grid(preset("digits").replace(epochs=1))
    still = lambda network, run: torch.optim.SGD(network.parameters(), 1e-30)  # noqa: E731
    [record] = train([run], data.load("digits"), optimizer=still)
    assert record["norm"][0] == pytest.approx(record["norm"][1], rel=1e-6)


def test_images_of_ones_own(own_store, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for split, count in [("train", 20), ("test", 6)]:
        for kind in range(2):
            folder = tmp_path / "images" / split / f"class-{kind}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 100, (8, 8), dtype=np.uint8) + 100 * kind
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    data.add("mine", tmp_path / "images")
    exec(EXAMPLES[1].replace("epochs=20", "epochs=2"), {})
    assert "pp" in capsys.readouterr().out and len(store.read(shipped=False)) == 6
