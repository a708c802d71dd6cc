"""The command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import fsvi
from fsvi.errors import FSVIError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=fsvi.__doc__,
)

Profile = typer.Option(help="paper: the paper's protocol; quick: minutes; smoke: seconds.")
_SHOWN = ("accuracy", "nll", "ece_15", "rmse", "log_likelihood", "far_entropy", "noise")
Out = typer.Option(help="Folder to write into; made if it is not there.")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"fsvi {fsvi.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, Out] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of initial parameters and training.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A few epochs only, to see that everything works.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Models to train side by side.", show_default="cores, at most 4")
    ] = None,
) -> None:
    """Train on four toy tasks and write a report with pictures."""
    from fsvi.experiments.demo import run_demo

    run_demo(out, seed, quick, workers, tell=typer.echo)


@app.command()
def bench(
    out: Annotated[Path, Out] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, smaller sizes.")] = False,
    methods: Annotated[
        str | None, typer.Option(help='Compare methods instead: "all", or names with commas between them.')
    ] = None,
) -> None:
    """Measure what training steps and predictions cost."""
    from fsvi.experiments.bench import run_bench

    run_bench(out, quick, methods)


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="What to learn, such as fashion-mnist or uci-yacht.")],
    method: Annotated[str, typer.Argument(help="How, such as fsvi, map or ensemble:map.")],
    seed: Annotated[int, typer.Option(help="Seed of the split, the initial parameters and training.")] = 0,
    profile: Annotated[str, Profile] = "paper",
    context: Annotated[str | None, typer.Option(help="Where FSVI looks beyond the data: kmnist, monochrome, …")] = None,
    out: Annotated[Path, Out] = Path("results"),
) -> None:
    """Train a method on a task of the paper and measure it.

    The result is kept as JSON; one that is there is not made again, one that was interrupted goes on.
    """
    from fsvi.experiments.experiment import Order
    from fsvi.experiments.runs import run as run_order

    result = run_order(Order(task, method, cast(Any, profile), seed, context), out, tell=typer.echo)
    shown = {name: value for name, value in result.metrics.items() if name in _SHOWN or name.startswith("auroc_")}
    typer.echo(f"{result.label}: " + ", ".join(f"{name} {value:.4f}" for name, value in shown.items()))


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, table2, retina, uci, rotated, toy or all.")],
    methods: Annotated[str | None, typer.Option(help="Only these rows: names with commas between them.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds.", show_default="as many as the paper")] = None,
    profile: Annotated[str, Profile] = "paper",
    out: Annotated[Path, Out] = Path("results"),
) -> None:
    """Make every run behind a table or figure of the paper.

    Those that are there are not made again.
    """
    from fsvi.experiments.sweeps import reproduce as sweep

    names = [name.strip() for name in (methods or "").split(",") if name.strip()]
    sweep(what, out, names, seeds, cast(Any, profile), tell=typer.echo)


@app.command()
def tune(
    task: Annotated[str, typer.Argument(help="What to learn.")],
    method: Annotated[str, typer.Argument(help="How.")],
    trials: Annotated[int, typer.Option(help="How many settings to try, earlier ones counted.")] = 20,
    contexts: Annotated[str | None, typer.Option(help="Contexts to choose from, with commas between them.")] = None,
    profile: Annotated[str, Profile] = "quick",
    seed: Annotated[int, typer.Option(help="Seed of the held-out split and of training.")] = 0,
    out: Annotated[Path, Out] = Path("studies"),
) -> None:
    """Search for hyperparameters on held-out training data.

    The log-likelihood decides; test data are never looked at.
    """
    from fsvi.experiments.experiment import Order
    from fsvi.experiments.tuning import tune as search

    names = tuple(name.strip() for name in (contexts or "").split(",") if name.strip())
    summary = search(Order(task, method, cast(Any, profile), seed), out, trials, names, tell=typer.echo)
    typer.echo(f"Best: {summary['best']}")


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="The folder that run and reproduce wrote into.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="Folder to write into.", show_default="the results' folder")] = None,
) -> None:
    """Write tables and figures beside the paper's.

    All results become one HTML page, and Markdown.
    """
    from fsvi.experiments.results_page import write_report

    write_report(results, results if out is None else out, tell=typer.echo)


@app.command()
def diagnose(
    result: Annotated[Path, typer.Argument(help="A result that run wrote, with its model beside it.")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program to read.")] = False,
) -> None:
    """Say whether a model's uncertainty can be trusted.

    Every finding is one sentence, with the setting to change.
    """
    from fsvi.experiments.diagnosing import diagnose_result

    diagnosis = diagnose_result(result)
    typer.echo(diagnosis.to_json() if as_json else str(diagnosis))


data_app = typer.Typer(no_args_is_help=True, help="Find, get and check datasets.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data() -> None:
    """Show which datasets there are, and which of them are here."""
    for row in fsvi.data.catalogue():
        size = f"{row.size / 1e6:.1f} MB" if row.size else ""
        typer.echo(f"{row.name:<14} {row.where:<28} {size:>9}  {row.what}; {row.licence}")


@data_app.command("get")
def get_data(names: Annotated[list[str], typer.Argument(help="Names from `fsvi data list`.")]) -> None:
    """Download datasets from their official addresses into the cache."""
    for name in names:
        fsvi.data.fetch(name, tell=typer.echo)


@data_app.command("verify")
def verify_data(names: Annotated[list[str] | None, typer.Argument(help="Names; none for all.")] = None) -> None:
    """Check the hashes of the files that are here."""
    checks = [check for name in names or fsvi.data.names() for check in fsvi.data.verify(name)]
    for check in checks:
        typer.echo(f"{check.result:<11} {check.file}")
    wrong = [check.file for check in checks if check.result == "wrong"]
    if wrong:
        raise FSVIError(f"{len(wrong)} of {len(checks)} files are not the published ones: delete {', '.join(wrong)}.")


def main() -> None:
    """Run the command line; an error that fsvi raised on purpose is one sentence, not a traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments, prog_name="fsvi")
    except FSVIError as error:
        if "--debug" in sys.argv:
            raise
        typer.secho(f"Error: {error}", fg="red", err=True)
        raise SystemExit(2) from error
