"""The command `initmem`."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from initmem.config import InitmemError

app = typer.Typer(
    help="Does a trained network remember how it was initialized? Reproduce the answer, claim by claim.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Data sets: where they lie, how to get or add them.", no_args_is_help=True)
results_app = typer.Typer(help="The store of results.", no_args_is_help=True)
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
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if value == "None":  # as papermill has it
        return None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string; people do not
        try:
            return float(value)
        except ValueError:
            return value
    return value


@app.command()
def reproduce(
    claim: Annotated[str, typer.Argument(help="A claim's id: `initmem claims` lists them.")],
    preset: Annotated[str | None, typer.Option(help="digits (the default), laptop or paper.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train everything anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False,
    pairs: Pairs = None,
) -> None:
    """Train what is missing, then print tables, metrics, clocks and the verdict."""
    from initmem import claims, report
    from initmem.chapters import choose_runs
    from initmem.runner import sweep

    entry = claims.claim(claim)
    if not entry.conditions:
        raise InitmemError(f"the claim {claim!r} has no experiment yet: choose from {', '.join(claims.testable())}")
    chosen = parameters(pairs, preset=preset, seeds=seeds)
    results = sweep(choose_runs(entry, chosen, fresh), jobs=jobs, fresh=fresh)
    if (failed := results["status"] == "failed").any():
        raise InitmemError(f"{failed.sum()} of {len(results)} runs failed; the others are stored, and the same command goes on")
    typer.echo(json.dumps(report.as_dict(entry, chosen, results), indent=2) if as_json else report.text(entry, chosen, results))


@app.command("claims")
def list_claims() -> None:
    """The ledger: each claim, the paper's figure, and the verdict per preset from the results at hand."""
    from initmem import report

    typer.echo(report.scoreboard_text())


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
    typer.echo("written: " + ", ".join(str(path) for path in written))


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
    typer.echo(report.clock_table({"yours": run}).to_string(index=False))


@data_app.command("list")
def data_list() -> None:
    """Data sets, sizes, fingerprints, where they lie."""
    import pandas as pd

    from initmem import data

    typer.echo(pd.DataFrame(data.available()).fillna("").to_string(index=False))


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
    typer.echo(
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
    typer.echo(counts.reset_index().to_string(index=False) if len(frame) else "no results yet")


@results_app.command("verify")
def results_verify() -> None:
    """Check every file of results, row by row."""
    from initmem import store

    if faults := store.verify():
        raise InitmemError("\n".join(faults))
    typer.echo(f"{len(store.read(columns=['run_id']))} runs, all in order")


@results_app.command("merge")
def results_merge(files: list[Path]) -> None:
    """Take the rows of other files into your store."""
    from initmem import store

    typer.echo(f"{store.merge(files)} new runs")


@results_app.command("export")
def results_export(file: Path) -> None:
    """Write all rows at hand to one Parquet file."""
    from initmem import store

    typer.echo(f"{store.export(file)} runs written to {file}")


def main() -> None:
    """Run the command; a fault the user can mend is one sentence on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # a polite kill is Ctrl-C
    try:
        app(join_pairs(sys.argv[1:]))
    except InitmemError as error:
        typer.echo(f"initmem: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
