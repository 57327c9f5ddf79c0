"""The cost of a sweep: counted by hand as torch counts it, without torch, and told in a few lines."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from initmem import claims, plan, runner
from initmem.config import ARCHS, grid, preset
from initmem.models import build


@pytest.mark.parametrize(("arch", "name"), [(arch, "digits") for arch in ARCHS] + [("resnet9", "cifar10"), ("resnet56", "fashion_mnist")])
def test_arithmetic_is_what_torch_counts(arch, name):
    run = preset("digits").replace(dataset=name, arch=arch, width=4)
    (height, width, channels), classes = runner.data_shape(name)
    model = build(run, channels, classes)
    images = torch.randn(2, channels, height, width)
    with FlopCounterMode(display=False) as forward:
        loss = model(images).sum()
    assert forward.get_total_flops() == 2 * plan.forward_flop(run)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    stem = 2 * next(iter(plan.layers(run, (height, width, channels), classes)))[2] * 9 * channels * height * width
    assert backward.get_total_flops() == 2 * (2 * plan.forward_flop(run) - stem), "nothing flows back into the images"


def test_arithmetic_of_the_presets():
    paper, laptop = preset("paper"), preset("laptop")
    assert 3 * plan.forward_flop(laptop) == pytest.approx(0.1442e9, rel=1e-3)
    assert 3 * plan.forward_flop(paper) == pytest.approx(2.276e9, rel=1e-3)
    assert plan.run_flop(paper) == 300 * (3 * 39936 + 10000) * plan.forward_flop(paper)


def test_the_plan_of_the_paper_needs_neither_data_nor_torch(own_store):
    code = """
import atexit, importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
atexit.register(lambda: print("torch" in sys.modules))
sys.argv[0] = "initmem"
from initmem.cli import main
main()
"""
    command = [sys.executable, "-c", code, "plan", "sgd-remembers", "--preset", "paper", "--cards", "8"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    runs = claims.claim("sgd-remembers").runs(preset="paper")
    lines = told.stdout.splitlines()
    assert lines[0] == f"{len(runs)} runs, {len(runs)} to train"
    assert lines[1] == f"arithmetic: {plan._amount(sum(map(plan.run_flop, runs)))}FLOP, 29.5 PFLOP for the longest run"
    assert "needs torch" in lines[2]
    assert lines[3].startswith("8 cards: ") and lines[3].endswith("at 50 TFLOP/s a card, assumed and not measured")
    assert lines[4:] == ["False"], "torch was not imported"


def test_what_is_stored_costs_nothing_and_the_rest_is_measured(own_store, monkeypatch):
    runs = grid(preset("digits").replace(epochs=1, train_size=64, val_size=32), sigma_w=[0.5, 1.0], seed=[0, 1])
    monkeypatch.setattr(plan, "step_seconds", lambda run, together: 3600.0 * together)
    first, _, here, card = plan.text(runs, cards=2, jobs=1).splitlines()
    assert first == "4 runs, 4 to train"
    hours = 4 * 4 * (3 * 64 + 32) / (3 * 64)  # 4 runs of 4 steps, with validation, an hour a step and lane
    assert here.endswith(f"FLOP/s measured, {hours:.1f} hours") and "gains nothing" in card
    begun = plan.text([*runs, *grid(runs[0].replace(epochs=2), sigma_w=[0.5, 1.0], seed=[0, 1])], jobs=1).splitlines()
    assert begun[0] == "8 runs, 8 to train" and begun[2].endswith(f"{2 * hours:.1f} hours"), "the longer hold the shorter"
    with ThreadPoolExecutor(1) as executor:
        runner.sweep(runs[:2], executor=executor, jobs=1, progress=False)
        assert plan.text(runs).splitlines()[0] == "4 runs, 2 to train"
        runner.sweep(runs, executor=executor, jobs=1, progress=False)
        assert plan.text(runs) == "4 runs, 0 to train"


def test_a_step_is_measured():
    threads = torch.get_num_threads()
    assert 0 < plan.step_seconds(preset("digits"), 2, seconds=0.1) < 5
    assert torch.get_num_threads() == threads
