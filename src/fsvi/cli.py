"""The command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fsvi
from fsvi.errors import FSVIError

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=fsvi.__doc__)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"fsvi {fsvi.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the report, the figures and the metrics.")] = Path("demo")) -> None:
    """Train FSVI on two moons and three 1D regressions, and write a report with pictures."""
    from fsvi.experiments.demo import run_demo

    run_demo(out)


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="Folder for bench.json.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, smaller sizes.")] = False,
) -> None:
    """Measure what a training step and a prediction cost, as ratios to plain training."""
    from fsvi.experiments.bench import run_bench

    run_bench(out, quick)


def main() -> None:
    """Run the command line; an error that fsvi raised on purpose is one sentence, not a traceback."""
    try:
        app()
    except FSVIError as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        raise SystemExit(2) from error
