"""The machine under the experiment: device, arithmetic, memory, and the facts about them that go into every row."""

import contextlib
import ctypes
import functools
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from initmem.config import InitmemError, Run, unknown


@dataclass(frozen=True)
class Engine:
    """Where a run is computed and in what arithmetic. Weights, BatchNorm and the optimizer are float32 always."""

    device: torch.device
    bf16: bool

    def autocast(self) -> contextlib.AbstractContextManager:
        """bfloat16 for convolutions and the head where the run asks for it or `auto` finds it native."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def prepare(run: Run) -> Engine:
    """Choose device and precision for a run and set the process up for speed. `INITMEM_DEVICE` overrides the device."""
    name = os.environ.get("INITMEM_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda", "mps"):  # torch knows more, such as meta, which computes nothing
        raise unknown("INITMEM_DEVICE", name, ["cpu", "cuda", "cuda:0", "mps"])
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InitmemError(
            f"INITMEM_DEVICE = {name!r} cannot be used here: choose cpu, or cuda with a CUDA build of torch"
        ) from None
    keep_freed_memory()
    torch.backends.cudnn.allow_tf32 = False  # float32 is float32 on a GPU too
    torch.backends.cudnn.deterministic = True  # so that a run resumed there ends in the same bits
    bf16 = run.precision == "bf16" or (run.precision == "auto" and bf16_is_native(device))
    return Engine(device, bf16)


def bf16_is_native(device: torch.device) -> bool:
    """Whether the processor multiplies bfloat16 faster than float32: read off its features, so never a matter of chance."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    if platform.machine() in ("aarch64", "arm64"):
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    # Intel's AVX-512-BF16 runs at half of float32's rate where AMX is absent or masked; AMD's at twice.
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    has_avx512 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return has_amx or (has_avx512 and is_amd())


def is_amd() -> bool:
    """Whether the processor is AMD's; false where the system does not say."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "AMD" in platform.processor()


@functools.cache
def keep_freed_memory() -> None:
    """Stop glibc from returning every freed activation to the kernel and faulting its pages in again."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in [(-3, 2**30), (-1, 2**31 - 1), (-2, 2**26)]:  # mmap threshold, trim threshold, top pad
            libc.mallopt(option, value)


@functools.cache
def git_revision() -> str:
    """Short hash of the checked-out commit, with + if files of the package differ from it; empty outside a checkout."""
    root = Path(__file__).parent
    try:
        revision = subprocess.run(
            ["git", "-C", root, "describe", "--always", "--exclude=*", "--dirty=+"], capture_output=True, text=True, timeout=10
        )
        return revision.stdout.strip()
    except OSError:
        return ""


def provenance(engine: Engine) -> dict:
    """Columns that say what computed a row."""
    if engine.device.type == "cuda":
        device = torch.cuda.get_device_name(engine.device)
    else:
        device = f"{engine.device.type} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return dict(
        package_version=version("initmem"),
        torch_version=torch.__version__,
        git_revision=git_revision(),
        device=device,
        threads=torch.get_num_threads(),
        precision_used="bf16" if engine.bf16 else "fp32",
    )
