"""The training half: the paired design, lanes, bits, divergence, selection, checkpoints, and the golden run."""

import contextlib
import os
import pickle
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from initmem import data
from initmem.config import ENGINE_VERSION, InitmemError, grid, preset
from initmem.engine import Engine, prepare
from initmem.models import build, init_kernels, kernels, resnet9, resnet_cifar
from initmem.optim import make_optimizer
from initmem.seeds import ORDER, permutation
from initmem.train import evaluate, split, train, train_epoch

SHORT = preset("digits").replace(epochs=2, train_size=96, val_size=64)
OPTIMIZERS = ["sgd", "momentum", "adam", "adamw", "muon"]
# Facts about the machine and the clock, not about the run.
PROVENANCE = {"wall_seconds", "date", "git_revision", "lanes"}


@pytest.fixture(scope="module")
def digits():
    torch.set_num_threads(1)
    return data.load("digits")


def same(a, b):
    """Whether two records agree bit by bit, provenance aside."""
    return all(np.array_equal(a[name], b[name], equal_nan=False) for name in a if name not in PROVENANCE)


def test_kernels_of_one_seed_differ_in_radius_alone():
    one, two = (build(SHORT.replace(sigma_w=s), 1, 10) for s in (0.3, 2.0))
    for (name, a), (_, b) in zip(kernels(one), kernels(two), strict=True):
        torch.testing.assert_close(a / 0.3, b / 2.0, rtol=1e-6, atol=0), name
    other = build(SHORT.replace(sigma_w=0.3, seed=1), 1, 10)
    assert not torch.allclose(next(kernels(one))[1], next(kernels(other))[1])


def test_kernels_have_the_stated_scale():
    model = resnet9(3, 10, width=32)
    init_kernels(model, [2**0.5], [0])
    for _, weight in kernels(model):
        fan_in = weight[0].numel()
        assert weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.06)  # He's
    assert model.head.bias.abs().max() == 0


def test_split_and_batches_depend_on_the_seed_alone(digits):
    engine = prepare(SHORT)
    here, there, other = (
        split(SHORT.replace(**change), digits, engine)
        for change in (dict(sigma_w=0.1), dict(sigma_w=2.5, optimizer="adam", lr=0.1), dict(seed=5))
    )
    assert torch.equal(here["train"], there["train"]) and torch.equal(here["val_labels"], there["val_labels"])
    assert not torch.equal(here["train"], other["train"])
    assert torch.equal(here["test"], other["test"])
    assert not torch.equal(permutation(96, 0, ORDER, 0), permutation(96, 0, ORDER, 1))
    joined = torch.cat([here["train"], here["val"]]).flatten(1)
    assert len(joined) == 160 and here["train"].mean().abs() < 0.1 and here["train"].std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("network", [lambda lanes: resnet9(1, 10, 4, lanes), lambda lanes: resnet_cifar(56, 1, 10, 4, lanes)])
def test_lanes_are_independent_networks(network):
    sigma = [0.5, 1.0, 2.0]
    together = network(3)
    init_kernels(together, sigma, [2, 2, 2])
    images = torch.randn(6, 1, 8, 8)
    outputs = together(images)
    for lane, s in enumerate(sigma):
        alone = network(1)
        init_kernels(alone, [s], [2])
        torch.testing.assert_close(outputs[:, lane], alone(images)[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_lanes_train_as_single_runs_do(digits, optimizer):
    runs = grid(SHORT.replace(optimizer=optimizer, lr=0.002, epochs=3, batch_size=16), sigma_w=[0.3, 1.0, 2.5])
    together = train(runs, digits)  # 18 steps
    for run, lane in zip(runs, together, strict=True):
        [alone] = train([run], digits)
        assert lane["run_id"] == alone["run_id"] and (lane["lanes"], alone["lanes"]) == (3, 1)
        np.testing.assert_allclose(lane["norm"], alone["norm"], rtol=2e-3)
        np.testing.assert_allclose(lane["train_loss"], alone["train_loss"], rtol=0.03)


@pytest.mark.parametrize("arch", ["resnet9", "resnet56"])
def test_lanes_of_several_seeds_train_as_single_runs_do(digits, arch):
    """Each seed has images, order and kernels of its own; to rounding over 12 steps, and over 6 for the deep network."""
    runs = grid(SHORT.replace(arch=arch, width=4, lr=0.001, batch_size=16), seed=[3, 0, 1], sigma_w=[0.5, 2.0], epochs=[1, 2])
    together = train(runs, digits)
    for run, lane in zip(runs, together, strict=True):
        [alone] = train([run], digits)
        assert lane["run_id"] == alone["run_id"] and lane["lanes"] == 6
        np.testing.assert_allclose(lane["norm"], alone["norm"], rtol=1e-4)
        np.testing.assert_allclose(lane["train_loss"][0], alone["train_loss"][0], rtol=1e-5)
        np.testing.assert_allclose(lane["val_loss"], alone["val_loss"], rtol=0.03)
        same_answer = np.frombuffer(lane["predictions"], np.uint8) == np.frombuffer(alone["predictions"], np.uint8)
        assert same_answer.mean() > (0.97 if arch == "resnet9" or run.epochs == 1 else 0.9)


def test_lanes_of_a_deep_network_train_as_single_runs_do(digits):
    """ResNet-56 on digits: to rounding over the first 6 steps; over the next 6 that grows, layer by layer."""
    runs = grid(SHORT.replace(arch="resnet56", width=4, lr=0.001, batch_size=16), sigma_w=[0.5, 2.0])
    for run, lane in zip(runs, train(runs, digits), strict=True):
        [alone] = train([run], digits)
        np.testing.assert_allclose(lane["norm"], alone["norm"], rtol=1e-4)
        np.testing.assert_allclose(lane["train_loss"][0], alone["train_loss"][0], rtol=1e-5)
        np.testing.assert_allclose(lane["train_loss"][1], alone["train_loss"][1], rtol=0.03)
        np.testing.assert_allclose(lane["layer_cosines"], alone["layer_cosines"], atol=1e-3)


def test_a_diverged_lane_leaves_the_others_alone(digits):
    """Loss overflows at once in the lane of monstrous scale, and its neighbours must not notice."""
    runs = grid(SHORT, sigma_w=[0.5, 1e38, 1.0])
    first, broken, third = train(runs, digits)
    assert broken["status"] == "diverged" and len(broken["train_loss"]) == 1
    assert first["status"] == third["status"] == "finished"
    pair = train([runs[0], runs[2]], digits)
    for lane, alone in zip([first, third], pair, strict=True):
        np.testing.assert_allclose(lane["train_loss"], alone["train_loss"], rtol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_longer_run_holds_the_shorter_ones_bit_for_bit(digits, optimizer):
    runs = grid(SHORT.replace(optimizer=optimizer), sigma_w=[0.3, 2.5], epochs=[4, 1, 2])
    together = train(runs, digits)
    alone = {}
    for epochs in (1, 2, 4):
        mine = [run for run in runs if run.epochs == epochs]
        alone |= dict(zip(mine, train(mine, digits), strict=True))
    for run, record in zip(runs, together, strict=True):
        assert same(record, alone[run]) and len(record["val_loss"]) == run.epochs
    assert all(record["wall_seconds"] > 0 for record in together)


def test_a_network_that_diverged_has_a_record_for_every_horizon(digits):
    runs = grid(SHORT, sigma_w=[1e38], epochs=[1, 2, 4])
    first, *others = train(runs, digits)
    assert first["status"] == "diverged" and len(first["val_loss"]) == 1
    for record in others:
        differing = {name for name in record if not np.array_equal(record[name], first[name])}
        assert differing <= {"epochs", "run_id", "wall_seconds", "train_loss", "val_loss", "norm", "test_loss", "last_test_loss", "layer_norms", "layer_cosines"}
        assert len(record["val_loss"]) == 1


def test_the_same_run_gives_the_same_bits(digits):
    [a], [b] = train([SHORT], digits), train([SHORT], digits)
    assert same(a, b)
    [c] = train([SHORT.replace(seed=1)], digits)
    assert not same(a, c)


def test_selection_is_by_validation_loss(digits):
    [record] = train([SHORT.replace(epochs=6, lr=0.3, optimizer="momentum")], digits)
    assert record["selected_epoch"] == np.argmin(record["val_loss"]) + 1
    assert len(record["norm"]) == 7 and len(record["layer_norms"]) == 7 * len(record["layers"]) == 7 * 9
    np.testing.assert_allclose(
        np.square(np.reshape(record["layer_norms"], (7, -1))).sum(1), np.square(record["norm"]), rtol=1e-5
    )
    cosines = np.reshape(record["layer_cosines"], (7, -1))
    np.testing.assert_allclose(cosines[0], 1, atol=1e-6)
    assert (cosines[-1] < 1).all()
    accuracy = (np.frombuffer(record["predictions"], np.uint8) == data.load("digits").test_labels).mean()
    assert accuracy == pytest.approx(record["test_accuracy"], abs=1e-6)


def test_too_many_images_asked_for(digits):
    with pytest.raises(InitmemError, match="train_size \\+ val_size = 700 \\+ 200 is more than the 797"):
        train([preset("digits").replace(train_size=700)], digits)


KILL_AND_RESUME = """
import os, pickle, random, signal, sys, time
from pathlib import Path
import torch
from initmem import data, train
from initmem.config import Run

torch.set_num_threads(1)
train.CHECKPOINT_SECONDS = 0
digits, rng = data.load("digits"), random.Random(0)
most, longest = int(sys.argv[2]), float(sys.argv[3])  # kills a run, and the share of its time that lies between two

def start(runs, checkpoint, output):  # a fork, which costs no import
    if child := os.fork():
        return child
    records = train.train(runs, digits, checkpoint=checkpoint)
    output.with_suffix(".part").write_bytes(pickle.dumps(records))
    output.with_suffix(".part").rename(output)
    os._exit(0)

for index, fields in enumerate(pickle.loads(sys.stdin.buffer.read())):
    runs, folder = [Run(**f) for f in fields], Path(sys.argv[1], str(index))
    folder.mkdir()
    began = time.monotonic()
    os.waitpid(start(runs, folder / "whole.pt", folder / "whole.pkl"), 0)
    usual, kills = time.monotonic() - began, 0
    while kills < most and not (folder / "resumed.pkl").exists():
        child = start(runs, folder / "resumed.pt", folder / "resumed.pkl")
        time.sleep(rng.uniform(0.1, 1) * longest * usual)
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    if not (folder / "resumed.pkl").exists():
        os.waitpid(start(runs, folder / "resumed.pt", folder / "resumed.pkl"), 0)
    (folder / "kills").write_text(str(kills))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("least, most, longest, epochs", [(2, 4, 0.5, 12), pytest.param(20, 20, 0.06, 120, marks=pytest.mark.slow)])
def test_killed_and_resumed_runs_end_in_the_same_bits(tmp_path, least, most, longest, epochs):
    """SIGKILL at random moments, several times in a run, with a checkpoint after every epoch: in every optimizer."""
    runs = [grid(SHORT.replace(optimizer=name), sigma_w=[0.5, 2.0], epochs=[epochs // 3, epochs]) for name in OPTIMIZERS]
    fields = pickle.dumps([[run.model_dump() for run in group] for group in runs])
    subprocess.run([sys.executable, "-c", KILL_AND_RESUME, tmp_path, str(most), str(longest)], input=fields, check=True, timeout=1200)
    for index, name in enumerate(OPTIMIZERS):
        whole, resumed = (pickle.loads((tmp_path / str(index) / f"{part}.pkl").read_bytes()) for part in ("whole", "resumed"))
        assert int((tmp_path / str(index) / "kills").read_text()) >= least, name
        assert all(same(a, b) for a, b in zip(whole, resumed, strict=True)), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_epoch_never_waits_for_the_device(optimizer, monkeypatch):
    """On the meta device, which has no values, whatever reads one or mixes devices raises: what a GPU would wait for."""
    for name in ("SGD", "Adam", "AdamW"):  # fused steps do not exist there
        kind = getattr(torch.optim, name)
        monkeypatch.setattr(torch.optim, name, lambda *args, kind=kind, **kwargs: kind(*args, **kwargs | dict(foreach=True, fused=None)))
    monkeypatch.setattr(Engine, "autocast", lambda self: contextlib.nullcontext())  # nor does autocast
    run, device = SHORT.replace(optimizer=optimizer), torch.device("meta")
    model = build(run, 1, 10, [0.5, 2.0]).to(device)
    images = {"train": torch.empty(96, 1, 8, 8, device=device), "train_labels": torch.empty(96, 1, dtype=torch.int64, device=device)}
    totals = train_epoch(model, make_optimizer(model, run), images, run, 0, Engine(device, False))
    predictions, validation = evaluate(model, images["train"], images["train_labels"], Engine(device, False))
    assert totals.device == predictions.device == validation.device == device
    with pytest.raises((RuntimeError, NotImplementedError)):
        totals.sum().item()


def test_a_damaged_checkpoint_means_starting_over(digits, tmp_path):
    checkpoint = tmp_path / "state.pt"
    checkpoint.write_bytes(b"not a checkpoint")
    [a], [b] = train([SHORT], digits, checkpoint=checkpoint), train([SHORT], digits)
    assert same(a, b)


def test_a_checkpoint_that_finds_the_disk_full_is_one_sentence_and_leaves_the_last(digits, tmp_path, monkeypatch):
    """By a limit on the sizes of files; torch by itself says `unexpected pos 576 vs 534`."""
    monkeypatch.setattr("initmem.train.CHECKPOINT_SECONDS", -1)
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path))
    checkpoint = tmp_path / "state.pt"
    train([SHORT], digits, checkpoint=checkpoint)
    before, (soft, hard) = checkpoint.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
    try:
        with pytest.raises(InitmemError, match="cannot write into .*state.pt .*File too large.*: free some space or set INITMEM_DATA"):
            train([SHORT.replace(epochs=SHORT.epochs + 1)], digits, checkpoint=checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.read_bytes() == before and list(tmp_path.iterdir()) == [checkpoint]


def test_a_checkpoint_of_a_former_version_means_starting_over(digits, tmp_path, monkeypatch):
    """One of the last epoch that lacks what was tested: the run must not fail for ever."""
    monkeypatch.setattr("initmem.train.CHECKPOINT_SECONDS", -1)
    checkpoint = tmp_path / "state.pt"
    [a] = train([SHORT], digits, checkpoint=checkpoint)
    content = torch.load(checkpoint, weights_only=True)
    assert content.pop("tests") and content["epoch"] == SHORT.epochs
    torch.save(content, checkpoint)
    [b] = train([SHORT], digits, checkpoint=checkpoint)
    assert same(a, b)


def test_golden_run_guards_the_numerics(digits):
    """If this fails because the numerics changed on purpose, raise ENGINE_VERSION and put the new values here.

    At the rates below, processors that round differently agree to seven digits. At ten times the rate Adam's do not: its
    first steps take the sign of gradients that may be all rounding.
    """
    assert ENGINE_VERSION == 1
    for name, (changes, expected) in GOLDEN.items():
        run = SHORT.replace(epochs=3, sigma_w=1.0, optimizer=name, **changes)
        np.testing.assert_allclose(train([run], digits)[0]["train_loss"], expected, rtol=1e-5, err_msg=name)


GOLDEN = {
    "sgd": (dict(weight_decay=0.1), [3.149747, 2.3674514, 1.8872442]),
    "momentum": (dict(), [2.9672222, 1.4803061, 0.9203482]),
    "adam": (dict(lr=0.0003), [3.2413175, 2.4582565, 1.9814592]),
    "adamw": (dict(lr=0.0003, weight_decay=0.1), [3.2410772, 2.4578071, 1.9811466]),
    "muon": (dict(), [3.2980148, 2.4837511, 1.8308338]),
}
