"""The command `initmem`."""

import contextlib
import errno
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import yaml
from pydantic import ValidationError

from initmem.config import InitmemError, reason, unknown

UsageError = typer.BadParameter.__base__  # click's own or typer's copy of it, as the version has it


class Group(typer.core.TyperGroup):
    """Commands; a misspelt one is answered like any other unknown name."""

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple:
        """The command that `args` begin with."""
        if self.get_command(ctx, args[0]) is None:
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Group,
    help="Does a trained network remember how it was initialized? Reproduce the answer, claim by claim.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(cls=Group, help="Data sets: where they lie, how to get or add them.", no_args_is_help=True)
results_app = typer.Typer(cls=Group, help="The store of results.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(results_app, name="results")

Pairs = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME VALUE", help="Change a parameter; may be given several times."),
]


def join_pairs(arguments: list[str]) -> list[str]:
    """`-p NAME VALUE`, as papermill has it, becomes the one-word `-p NAME=VALUE` that typer takes."""
    joined, rest = [], iter(arguments)
    for word in rest:
        joined.append(word)
        if word in ("-p", "--parameter") and (name := next(rest, None)) is not None:
            if "=" not in name and (value := next(rest, None)) is None:
                raise InitmemError(f"-p {name} has no value: give it as -p {name} VALUE")
            joined.append(name if "=" in name else f"{name}={value}")
    return joined


def parameters(pairs: list[str] | None, **fixed: Any) -> "Any":
    """Chapter parameters from the command line: values are read as YAML, names and types checked before anything runs."""
    from initmem.claims import Parameters

    given = {name: value for name, value in fixed.items() if value is not None}
    for name, _, text in (pair.partition("=") for pair in pairs or []):
        if name in given:
            raise InitmemError(f"{name} is given twice, as {given[name]!r} and as {text!r}: give it once")
        if not text.strip():
            raise InitmemError(f"-p {name} has no value: give it as -p {name} VALUE")
        given[name] = _value(text)
    return Parameters(**given)


def _value(text: str) -> Any:
    """A value as people write it: YAML's lists and mappings, but not YAML 1.1's numbers, for which 1e-3 is a word and 1:30 is 90."""
    try:
        return _scalars(yaml.load(text, yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError):
        return text


def _scalars(value: Any) -> Any:
    if isinstance(value, list):
        return [_scalars(each) for each in value]
    if value in ("None", "null", "~"):  # the first as papermill has it
        return None
    for number in (int, float):
        with contextlib.suppress(TypeError, ValueError):
            return number(value.replace(".nan", "nan").replace(".inf", "inf") if isinstance(value, str) else value)
    return value


@app.command()
def reproduce(
    claim: Annotated[str, typer.Argument(help="A claim's id, which `initmem claims` lists, or `all`: the paper's, briefly.")],
    preset: Annotated[str | None, typer.Option(help="digits (the default), laptop or paper.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each process.")] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Train on the workers of this Dask scheduler.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train everything anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False,
    pairs: Pairs = None,
) -> None:
    """Train what is missing, then print tables, metrics, clocks and the verdict."""
    import pandas as pd
    from tqdm import tqdm

    from initmem import claims, cluster, report
    from initmem.chapters import choose_runs
    from initmem.config import Run
    from initmem.runner import sweep
    from initmem.store import RUN_FIELDS

    chosen = parameters(pairs, preset=preset, seeds=seeds)
    everything = claim == "all"
    entries = [c for c in claims.ledger().claims.values() if not c.ours] if everything else [claims.claim(claim)]
    asked = [choose_runs(entry, chosen, fresh, brief=everything) for entry in entries]
    done: dict[Run, dict] = {}
    answered: dict[str, pd.DataFrame] = {}
    began = time.monotonic()

    def answer() -> None:
        """Answer the claims whose last run has come."""
        for entry, runs in zip(entries, asked, strict=True):
            if entry.id in answered or not done.keys() >= set(runs):
                continue
            results = answered[entry.id] = pd.DataFrame([done[run] for run in runs])
            if everything and not as_json:
                line = f"[{len(answered)}/{len(entries)}] {entry.verdict(entry.split(results, chosen))}"
                tqdm.write(f"{line}\n  {len(results)} runs, after {time.monotonic() - began:.0f} s", file=sys.stdout)

    def on_rows(rows: list[dict]) -> None:
        done.update({Run(**{name: row[name] for name in RUN_FIELDS}): row for row in rows})
        answer()

    with cluster.dask(dask, threads) if dask else contextlib.nullcontext((None, None)) as (executor, at_once):
        runs = list(dict.fromkeys(run for part in asked for run in part))  # all claims at once: they share runs, and no processor idles
        results = sweep(runs, jobs=jobs or at_once, executor=executor, threads=threads, fresh=fresh, on_rows=on_rows)
    if (failed := results["status"] == "failed").any():
        raise InitmemError(f"{failed.sum()} of {len(results)} runs failed; the others are stored, and the same command goes on")
    done |= dict(zip(runs, results.to_dict("records"), strict=True))
    answer()
    answers = [(entry, answered[entry.id]) for entry in entries]
    if as_json:
        found = [report.as_dict(entry, chosen, results) for entry, results in answers]
        print(json.dumps(found if everything else found[0], indent=2))
    elif everything:
        print(f"\nThe scoreboard on {chosen.preset}\n" + report.outcomes_text(answers, chosen))
    else:
        print(report.text(*[(entry, chosen, results) for entry, results in answers][0]))


@app.command()
def plan(
    claim: Annotated[str, typer.Argument(help="A claim's id, which `initmem claims` lists, or `all`.")],
    preset: Annotated[str | None, typer.Option(help="digits (the default), laptop or paper.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once.")] = None,
    cards: Annotated[int | None, typer.Option(min=1, help="Also on this many GPUs.")] = None,
    pairs: Pairs = None,
) -> None:
    """What the whole grid of a claim would cost: runs, arithmetic, hours. Trains nothing."""
    from initmem import claims
    from initmem.plan import text

    chosen = parameters(pairs, preset=preset, seeds=seeds)
    entries = claims.ledger().claims.values() if claim == "all" else [claims.claim(claim)]
    runs = list(dict.fromkeys(run for entry in entries for run in entry.runs(chosen)))
    print(text(runs, cards, jobs))


@app.command("claims")
def list_claims() -> None:
    """The ledger: each claim, the paper's figure, and the verdict per preset from the results at hand."""
    from initmem import report

    print(report.scoreboard_text())


@app.command()
def rerun(
    chapter: Annotated[str, typer.Argument(help="A chapter's name, such as sgd-remembers.")],
    pairs: Pairs = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the notebook goes.")] = None,
    as_html: Annotated[bool, typer.Option("--html", help="Also write a page beside it.")] = False,
) -> None:
    """Execute a chapter with your parameters, checked before anything runs."""
    from initmem import chapters

    written = chapters.rerun(chapter, parameters(pairs), output, as_html)
    print("written: " + ", ".join(str(path) for path in written))


@app.command()
def clocks(
    lr: Annotated[float, typer.Option(help="Learning rate η, constant.")],
    batch_size: Annotated[int, typer.Option(help="Images a step b.")] = 128,
    train_size: Annotated[int, typer.Option(help="Training images.")] = 40_000,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 300,
    weight_decay: Annotated[float, typer.Option(help="λ.")] = 0.0,
) -> None:
    """The three forgetting clocks of a recipe, and the paper's regimes beside them."""
    from initmem import report
    from initmem.config import preset

    run = preset("paper").replace(
        lr=lr, batch_size=batch_size, train_size=train_size, epochs=epochs, weight_decay=weight_decay
    )
    print(report.clock_table({"yours": run}).to_string(index=False))


@data_app.command("list")
def data_list() -> None:
    """Data sets, sizes, fingerprints, where they lie."""
    import pandas as pd

    from initmem import data

    rows = [
        row | {"image": "×".join(map(str, row["image"] or ())), "classes": row["classes"] and len(row["classes"])}
        for row in data.available()
    ]
    print(pd.DataFrame(rows, dtype=object).fillna("").to_string(index=False))


@data_app.command("fetch")
def data_fetch(name: str) -> None:
    """Download a data set, with checksum, progress and resume."""
    from initmem import data

    _say_data(data.fetch(name))


@data_app.command("add")
def data_add(name: str, path: Path) -> None:
    """Add a folder or tar archive of train/CLASS/* and test/CLASS/* images, or a data set's official archive."""
    from initmem import data

    _say_data(data.add(name, path))


def _say_data(found: Any) -> None:
    print(
        f"{found.name}: {len(found.train_labels):,} training and {len(found.test_labels):,} test images of "
        f"{' × '.join(map(str, found.train_images.shape[1:]))}, {len(found.classes)} classes, fingerprint {found.fingerprint}"
    )


@results_app.command("list")
def results_list() -> None:
    """How many runs there are of each recipe."""
    from initmem import store

    columns = ["dataset", "arch", "width", "optimizer", "lr", "weight_decay", "batch_size", "epochs", "data_source", "engine"]
    frame = store.read(columns=["run_id", "status", *columns])
    counts = frame.groupby(columns).agg(runs=("run_id", "count"), diverged=("status", lambda s: int((s == "diverged").sum())))
    print(counts.reset_index().to_string(index=False) if len(frame) else "no results yet")


@results_app.command("verify")
def results_verify() -> None:
    """Check every file of results, row by row."""
    from initmem import store

    if faults := store.verify():
        raise InitmemError("\n".join(faults))
    print(f"{_count(len(store.read(columns=['run_id'])), 'run')}, all in order")


@results_app.command("merge")
def results_merge(files: list[Path]) -> None:
    """Take the rows of other files into your store."""
    from initmem import store

    print(_count(store.merge(files), "new run"))


@results_app.command("export")
def results_export(file: Path) -> None:
    """Write all rows at hand to one Parquet file."""
    from initmem import store

    print(f"{_count(store.export(file), 'run')} written to {file}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _usage(error: Any) -> str:
    """One sentence for what typer complains of: the value, what is allowed, the nearest match."""
    if hasattr(error, "possibilities"):
        options = [name for each in error.ctx.command.get_params(error.ctx) for name in each.opts if name.startswith("-")]
        return str(unknown("option", error.option_name, options))
    if isinstance(error.__cause__, ValidationError):
        complaint = error.__cause__.errors(include_url=False)[0]
        return f"{error.param.opts[0]} = {complaint['input']!r} is not allowed: {reason(complaint)}"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message[0].lower()}{message[1:]}: `{error.ctx.command_path if error.ctx else 'initmem'} --help` says what is allowed"


def main() -> None:
    """Run the command; a fault the user can mend is one sentence on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is Ctrl-C, also where Ctrl-C itself is ignored
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # none at all where it was closed
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no σ gets \u03c3
    message = ""
    try:
        code = app(join_pairs(sys.argv[1:]), prog_name="initmem", standalone_mode=False) or 0
        sys.stdout.flush()
    except InitmemError as error:
        message, code = str(error), error.exit_code
    except UsageError as error:
        code = 2
        if type(error).__name__ != "NoArgsIsHelpError":  # that one has printed the help
            message = _usage(error)
    except (typer.Abort, KeyboardInterrupt):
        message, code = "stopped", 130
    except OSError as error:
        if error.filename or error.errno not in (errno.ENOSPC, errno.EIO, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries to write the rest once more
        if error.errno == errno.EPIPE:  # as `| head` leaves it: no fault, and 1 is what typer gives
            sys.exit(1)
        message, code = f"cannot write the output: {error.strerror}", 2
    if message:
        print(f"initmem: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
