"""What a GPU makes of the same loop, in under eight minutes: `python benchmarks/gpu.py [--quick]`.

First 20 steps in float32 must agree with the processor's. Then images a second of ResNet-9, width 64, at several batch
sizes, with 1, 4 and 8 runs at once: as lanes of one network, and as threads that each have a stream. The table goes to
benchmarks/results/gpu.json. `--quick` rehearses a small part of it on whatever device there is and leaves no table.
"""

import contextlib
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from common import matrix_flops, memory_bandwidth, processor, random_data, timed, write

from initmem.config import Run, preset
from initmem.engine import Engine, prepare
from initmem.models import build, kernels
from initmem.optim import make_optimizer
from initmem.plan import forward_flop
from initmem.train import split, train_epoch

QUICK = "--quick" in sys.argv
WIDTH, BATCHES, TOGETHER, STEPS, ROUNDS = (4, [16], [1, 2], 4, 1) if QUICK else (64, [16, 128, 256], [1, 4, 8], 40, 3)
TOLERANCE = 1e-3  # of losses and norms after 20 steps: rounding, not another result


def epoch_of(run: Run, engine: Engine, lanes: int = 1):
    """A function that trains one epoch, and the network that it trains."""
    model = build(run, 3, 10, [run.sigma_w] * lanes).to(engine.device, memory_format=torch.channels_last)
    optimizer, images = make_optimizer(model, run), split(run, random_data(run.train_size), engine)
    return lambda: train_epoch(model, optimizer, images, run, 0, engine), model


def difference(device: torch.device) -> float:
    """Largest relative difference between device and processor, of loss and kernel norms after 20 steps in float32."""
    found = []
    for place in (torch.device("cpu"), device):
        run = preset("laptop").replace(train_size=20 * 32, val_size=1, precision="fp32", lr=0.001)
        epoch, model = epoch_of(run, Engine(place, False))
        loss = epoch()[:1]
        found.append(torch.cat([loss.flatten().cpu(), *[weight.detach().norm().cpu()[None] for _, weight in kernels(model)]]))
    return ((found[1] - found[0]) / found[0]).abs().max().item()


def as_lanes(run: Run, engine: Engine, together: int):
    return epoch_of(run, engine, together)[0]


def as_streams(run: Run, engine: Engine, together: int):
    epochs = [epoch_of(run, engine)[0] for _ in range(together)]
    streams = [torch.cuda.Stream() if engine.device.type == "cuda" else None for _ in epochs]
    threads = ThreadPoolExecutor(together)
    if engine.device.type == "cuda":
        torch.cuda.synchronize()  # what was built on the default stream is there before another reads it

    def on_stream(epoch, stream) -> None:
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            epoch()

    return lambda: list(threads.map(on_stream, epochs, streams))


if __name__ == "__main__":
    if not torch.cuda.is_available() and not QUICK:
        sys.exit("no CUDA device is found here: run this on a machine with a GPU and a CUDA build of torch")
    engine = prepare(preset("paper"))
    apart = difference(engine.device)
    print(f"20 steps in float32 differ from the processor's by {apart:.1e} at most")
    if apart > TOLERANCE:
        sys.exit(f"that is more than rounding ({TOLERANCE:g}): do not trust results from this device")
    peak = matrix_flops(engine, 256 if QUICK else 8192)
    rows = []
    for batch_size in BATCHES:
        run = preset("paper").replace(width=WIDTH, batch_size=batch_size, train_size=STEPS * batch_size, val_size=1)
        for together in TOGETHER:
            for way, recipe in {"lanes": as_lanes, "streams": as_streams}.items():
                if together == 1 and way == "streams":
                    continue
                try:
                    work = recipe(run, engine, together)
                    work()  # warm up
                    speed = together * run.train_size / statistics.median(timed(work) for _ in range(ROUNDS))
                except torch.cuda.OutOfMemoryError:
                    print(f"b = {batch_size}, {together} {way}: too little memory on the card")
                    continue
                share = 3 * forward_flop(run) * speed / peak
                print(f"b = {batch_size}, {together} {way}: {speed:.0f} images/s, {share:.0%} of the matrix-product rate", flush=True)
                rows.append(dict(batch_size=batch_size, runs=together, way=way, images_per_second=round(speed), share=round(share, 3)))
    device = torch.cuda.get_device_name() if engine.device.type == "cuda" else processor()
    facts = dict(device=device, bf16=engine.bf16, width=WIDTH, matrix_flops=peak, difference=apart)
    facts |= dict(bytes_per_second=memory_bandwidth(engine.device, 2**22 if QUICK else 2**30))
    print(facts)
    if not QUICK:
        write("gpu", rows, **facts)
