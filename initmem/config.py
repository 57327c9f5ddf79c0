"""One training run as a frozen, validated record; presets, grids, identity, and errors a person can act on."""

import contextlib
import difflib
import hashlib
import itertools
import json
import os
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import platformdirs
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

# Part of every run's identity. Raise it when the numerics change (tests/test_golden.py tells you); older rows are then
# kept in their files but no longer answer for a run.
ENGINE_VERSION = 1

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "muon"]
Arch = Literal["resnet9", "resnet56", "resnet110"]
PresetName = Literal["digits", "laptop", "paper"]
OPTIMIZERS, ARCHS, PRESETS = get_args(Optimizer), get_args(Arch), get_args(PresetName)


class InitmemError(Exception):
    """A fault the user can mend. The message is one sentence: the value, what is allowed, the nearest match."""

    exit_code = 2


class Interrupted(InitmemError):
    """Ctrl-C: finished work is kept, and the message says how to go on."""

    exit_code = 130


def unknown(kind: str, name: object, allowed: Iterable[str]) -> InitmemError:
    """The error for a name that is not among the allowed ones, with the nearest match if there is one."""
    allowed = list(allowed)
    near = difflib.get_close_matches(str(name), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InitmemError(f"unknown {kind} {textwrap.shorten(str(name), 90, placeholder=' …')!r}: choose from {', '.join(allowed)}{hint}")


def explain(error: ValidationError, allowed: Iterable[str] = ()) -> InitmemError:
    """Turn the first complaint of a pydantic error into one sentence; `allowed` are the known field names."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    name, value = ".".join(part for part in first["loc"] if isinstance(part, str)), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown("parameter", name, allowed)
    if first["type"] == "literal_error":
        return unknown(name, value, [part.strip("'") for part in first["ctx"]["expected"].replace(" or ", ", ").split(", ")])
    if first["type"] == "missing":
        missing = [".".join(map(str, each["loc"])) for each in complaints if each["type"] == "missing"]
        return InitmemError(f"no value for {', '.join(missing)}: give one for each")
    return InitmemError(f"{name} = {textwrap.shorten(repr(value), 90, placeholder=' …')} is not allowed: {reason(first)}")


def reason(complaint: Mapping[str, Any]) -> str:
    """What is allowed instead, from one complaint of a pydantic error."""
    match complaint["type"]:
        case "value_error":
            return str(complaint["ctx"]["error"])
        case "string_pattern_mismatch":
            return "use a to z and 0 to 9, then also - and _"
        case "too_short":
            return f"give at least {complaint['ctx']['min_length']} value"
        case "less_than_equal":  # pydantic writes 1e100 with all its zeros
            return f"it must be less than or equal to {complaint['ctx']['le']:.10g}"
    return complaint["msg"].replace("Input should", "it must").split(", unable")[0].split(", got")[0]


def folder_from(variable: str) -> Path | None:
    """The folder that an environment variable names, as an absolute path; None where it is unset or empty."""
    if not (text := os.environ.get(variable)):
        return None
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, FileNotFoundError):  # no such user, or no current folder
        raise InitmemError(f"{variable} = {text!r} leads nowhere: give an absolute path") from None


def cache_dir(*parts: str) -> Path:
    """The reader's own folder: the platform's cache folder, or `INITMEM_DATA` where that is set. Not created here."""
    return (folder_from("INITMEM_DATA") or platformdirs.user_cache_path("initmem")).joinpath(*parts)


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn the system's refusal to write to `place` into one sentence with a way out."""
    try:
        yield
    except OSError as error:
        own = place.absolute().is_relative_to(cache_dir())
        way_out = "free some space or set INITMEM_DATA to a folder you can write" if own else "free some space or choose another place"
        raise InitmemError(f"cannot write into {place} ({error.strerror or error}): {way_out}; what was stored before is intact") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden file beside `path` to write to, at the end renamed into its place: `path` is whole, or as it was before."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()


def clear_leftovers() -> None:
    """Remove from the reader's folder what processes that were killed while they wrote have left; no write takes an hour."""
    for partial in cache_dir().glob("*/.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > 3600:
                partial.unlink()


# NumPy scalars are as good as Python's: grids are often built with linspace or arange.
_plain = BeforeValidator(lambda value: value.item() if hasattr(value, "item") else value)
_unsigned = AfterValidator(lambda value: value + 0.0)  # -0.0 becomes 0.0: one run, one id
Positive = Annotated[float, Field(gt=0, le=1e100, allow_inf_nan=False, strict=True), _plain]
NonNegative = Annotated[float, Field(ge=0, le=1e100, allow_inf_nan=False, strict=True), _plain, _unsigned]
Count = Annotated[int, Field(ge=1, le=10**9, strict=True), _plain]
BatchSize = Annotated[int, Field(ge=2, le=10**9, strict=True), _plain]


def as_list(value: Any) -> list:
    """One value, or several in any iterable, as a list."""
    if hasattr(value, "tolist"):  # NumPy, pandas, torch
        value = value.tolist()
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]


def _each_once(values: list) -> list:
    if repeated := [value for index, value in enumerate(values) if value in values[:index]]:
        raise ValueError(f"{repeated[0]!r} is given twice")
    return values


# For a field of one or several values: Annotated[list[...], Several].
Several = Field(min_length=1), BeforeValidator(as_list), AfterValidator(_each_once)


class Checked(BaseModel):
    """A frozen pydantic model that refuses unknown names and answers with one-sentence errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, **fields: Any):
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise explain(error, type(self).model_fields) from None


class Run(Checked):
    """One training run. Two runs with equal fields on equal data give equal results.

    Raises InitmemError for an unknown field or a value outside its range.
    """

    dataset: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="name of a data set: `initmem data list`")]
    train_size: Annotated[Count, Field(description="training images")]
    val_size: Annotated[Count, Field(description="validation images, used for selection only")]
    arch: Annotated[Arch, Field(description="network")] = "resnet9"
    width: Annotated[Count, Field(description="channels of the first convolution")]
    sigma_w: Annotated[Positive, Field(description="scale of every initial kernel, W = σ_w·G/√fan_in; √2 is He's")] = 2**0.5
    optimizer: Annotated[Optimizer, Field(description="optimizer")] = "sgd"
    lr: Annotated[Positive, Field(description="learning rate η, constant")]
    momentum: Annotated[
        NonNegative, Field(lt=1, description="heavy-ball coefficient, used by `momentum` alone")
    ] = 0.9
    weight_decay: Annotated[
        NonNegative, Field(description="λ: L2 in the gradient (sgd, momentum, adam) or decoupled (adamw, muon)")
    ] = 0.0
    batch_size: Annotated[BatchSize, Field(description="images a step; a short last batch is dropped")]
    epochs: Annotated[Count, Field(description="passes over the training images")]
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True, description="draws split, batch order and kernel directions"), _plain] = 0
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], Field(description="auto: bf16 autocast where the processor computes it, else fp32")
    ] = "auto"

    def model_post_init(self, _context: Any) -> None:
        if self.batch_size > self.train_size:
            raise InitmemError(
                f"batch_size = {self.batch_size} is larger than train_size = {self.train_size}: "
                f"choose a batch of 2 to {self.train_size}"
            )

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """What is printed: all but a momentum that the optimizer does not use."""
        return [(name, value) for name, value in super().__repr_args__() if name != "momentum" or self.optimizer == "momentum"]

    def replace(self, /, **changes: Any) -> "Run":
        """The same run with some fields changed, validated anew."""
        return Run(**{**self.model_dump(), **changes})

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch."""
        return self.train_size // self.batch_size

    @property
    def depth(self) -> int:
        """Layers of the network, as its name counts them."""
        return int(self.arch.removeprefix("resnet"))

    def run_id(self, data_fingerprint: str, engine: int = ENGINE_VERSION) -> str:
        """Sixteen hex digits naming this run on this copy of the data under this engine."""
        fields = self.model_dump()
        if self.optimizer != "momentum":
            fields.pop("momentum")  # has no effect, so it must not split identical runs
        text = json.dumps([fields, data_fingerprint, engine], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_PRESETS: dict[str, dict[str, Any]] = {
    # scikit-learn's bundled digits: seconds a run, nothing to download.
    "digits": dict(dataset="digits", train_size=300, val_size=200, width=8, lr=0.003, batch_size=16, epochs=60, precision="fp32"),
    # A tenth of CIFAR-10 on a quarter of the width: a minute or two a run on two cores.
    "laptop": dict(dataset="cifar10", train_size=4000, val_size=1000, width=16, lr=0.01, batch_size=32, epochs=60),
    # The paper's protocol: one GPU a run.
    "paper": dict(dataset="cifar10", train_size=40000, val_size=10000, width=64, lr=0.001, batch_size=128, epochs=300),
}


def preset(name: str) -> Run:
    """The run that a preset (`digits`, `laptop` or `paper`) starts from: a scale and a budget, never a verdict."""
    if not isinstance(name, str) or name not in _PRESETS:
        raise unknown("preset", name, PRESETS)
    return Run(**_PRESETS[name])


def grid(base: Run, **axes: Any) -> list[Run]:
    """Every combination of the given fields' values over `base`; the last axis varies fastest.

    Each axis is one value or an iterable of values: `grid(base, sigma_w=[0.1, 1, 2.5], seed=range(3))`.
    """
    if not isinstance(base, Run):
        raise InitmemError(f"{base!r} is no run to vary: give one, such as initmem.preset('digits')")
    values = {}
    for name, axis in axes.items():
        if name not in Run.model_fields:
            raise unknown("parameter", name, Run.model_fields)
        values[name] = as_list(axis)
        if not values[name]:
            raise InitmemError(f"{name} is an empty list: give at least one value")
    runs = [base.replace(**dict(zip(values, point, strict=True))) for point in itertools.product(*values.values())]
    return list(dict.fromkeys(runs))
