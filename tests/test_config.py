"""Runs as records: one identity for one run, and every value that cannot be is refused in a sentence."""

import numpy as np
import pytest

from initmem import claims
from initmem.config import InitmemError, Run, grid, preset

BASE = preset("digits")


@pytest.mark.parametrize(("change", "says"), [
    (dict(lr=True), "lr = True is not allowed: it must be a valid number"),
    (dict(lr="0.1"), "lr = '0.1' is not allowed: it must be a valid number"),
    (dict(lr=0), "lr = 0 is not allowed: it must be greater than 0"),
    (dict(lr=np.arange(3.0)), "lr = array([0., 1., 2.]) is not allowed: can only convert an array of size 1 to a Python scalar"),
    (dict(momentum=False), "momentum = False is not allowed: it must be a valid number"),
    (dict(momentum="0.5"), "momentum = '0.5' is not allowed: it must be a valid number"),
    (dict(momentum=1), "momentum = 1 is not allowed: it must be less than 1"),
    (dict(batch_size=2.5), "batch_size = 2.5 is not allowed: it must be a valid integer"),
    (dict(dataset="MNIST"), "dataset = 'MNIST' is not allowed: use a to z and 0 to 9, then also - and _"),
    (dict(arch=["resnet9"]), "unknown arch '['resnet9']': choose from resnet9, resnet56, resnet110; did you mean 'resnet9'?"),
    (dict(arhc="resnet9"), "unknown parameter 'arhc': choose from " + ", ".join(Run.model_fields) + "; did you mean 'arch'?"),
])  # fmt: skip
def test_a_value_that_cannot_be_is_one_sentence(change, says):
    with pytest.raises(InitmemError) as error:
        BASE.replace(**change)
    assert str(error.value).replace('"', "'") == says


def test_a_long_value_is_shortened_to_one_line():
    with pytest.raises(InitmemError) as error:
        BASE.replace(seed=np.zeros((50, 50)))
    assert len(str(error.value)) < 200 and "\n" not in str(error.value)


def test_every_missing_field_is_named():
    with pytest.raises(InitmemError) as error:
        Run(lr=0.1, width=8)
    assert str(error.value) == "no value for dataset, train_size, val_size, batch_size, epochs: give one for each"


def test_one_run_has_one_id():
    same = [
        BASE,
        BASE.replace(weight_decay=-0.0),
        BASE.replace(lr=np.float64(BASE.lr), batch_size=np.int32(BASE.batch_size), seed=np.uint8(0), momentum=np.float64(0.9)),
        BASE.replace(momentum=0.5),  # SGD has none
    ]
    assert len({run.run_id("copy") for run in same}) == 1
    assert BASE.replace(lr=1).run_id("copy") == BASE.replace(lr=1.0).run_id("copy")
    assert BASE.replace(optimizer="momentum").run_id("copy") != BASE.replace(optimizer="momentum", momentum=0.5).run_id("copy")


@pytest.mark.parametrize("name", [["digits"], None, 3, np.arange(3), {}])
def test_a_preset_is_a_name(name):
    with pytest.raises(InitmemError, match="unknown preset .*: choose from digits, laptop, paper"):
        preset(name)


def test_a_grids_axes():
    assert [run.sigma_w for run in grid(BASE, sigma_w=np.array([0.5, 1]))] == [0.5, 1]
    assert [run.seed for run in grid(BASE, seed=range(3))] == [0, 1, 2]
    assert [run.optimizer for run in grid(BASE, optimizer="adam")] == ["adam"]
    assert [run.sigma_w for run in grid(BASE, sigma_w=np.array(0.5))] == [0.5]
    with pytest.raises(InitmemError, match="sigma_w = {1: 2} is not allowed: it must be a valid number"):
        grid(BASE, sigma_w={1: 2})
    with pytest.raises(InitmemError, match="seed is an empty list"):
        grid(BASE, seed=range(0))


@pytest.mark.parametrize(("given", "says"), [
    (dict(sigma_w=[]), "sigma_w = [] is not allowed: give at least 1 value"),
    (dict(sigma_w=[1, 0]), "sigma_w = 0 is not allowed: it must be greater than 0"),
    (dict(sigma_w={"a": 1}), "sigma_w = {'a': 1} is not allowed: it must be a valid number"),
    (dict(sigma_w=[0.1, 1, 1.0]), "sigma_w = [0.1, 1, 1.0] is not allowed: 1.0 is given twice"),
    (dict(optimizers=["adam", "adam"]), "optimizers = ['adam', 'adam'] is not allowed: 'adam' is given twice"),
    (dict(optimizers=["adamm"]), "unknown optimizers 'adamm': choose from sgd, momentum, adam, adamw, muon; did you mean 'adam'?"),
])  # fmt: skip
def test_lists_of_parameters(given, says):
    with pytest.raises(InitmemError) as error:
        claims.Parameters(**given)
    assert str(error.value) == says


def test_one_value_is_a_list_of_one():
    chosen = claims.Parameters(sigma_w=np.float64(0.5), optimizers="adam", batch_size=np.int64(32))
    assert chosen.sigma_w == [0.5] and chosen.optimizers == ["adam"] and chosen.batch_size == 32
    assert claims.Parameters(sigma_w=np.array([0.5, 1])).sigma_w == [0.5, 1]
