"""`python -m paper`: runs, sweeps, tuning, reports, benchmarks and datasets."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fsvi.errors import FSVIError
from fsvi.networks.devices import find_device
from fsvi.training.distributed import num_processes, process_number
from fsvi.training.step import PRECISIONS
from fsvi.validation import check_choice, first_line
from paper import data
from paper.experiment import Compute, Order

HERE = Path(__file__).resolve().parent
RESULTS, STUDIES = HERE / "results", HERE / "studies"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reproduce the experiments of the paper.",
    epilog="Exit codes: 0 done, 1 bad input (one sentence says what), 2 bad usage, 130 interrupted.",
)
Task = typer.Argument(help="The task, such as fashion-mnist or uci-yacht.")
MethodName = typer.Argument(help="The method, such as fsvi, map or ensemble:map.")
Profile = typer.Option(
    help="paper: the paper's protocol; desk: about an hour (cifar10, retina); quick: minutes; smoke: seconds."
)
Out = typer.Option(help="Output folder; created if missing.")
Json = typer.Option("--json", help="Print JSON for other programs.")
Device = typer.Option(help="Where to compute: cpu, cuda, mps or auto.", show_default="cpu")
Precision = typer.Option(
    help="bf16 or fp16 trains the network in that type, faster where the processor has it.", show_default="float32"
)
_to_stderr = partial(typer.echo, err=True)


def _listed(names: str | None) -> tuple[str, ...]:
    """The names in a comma-separated option."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def _compute(device: str | None, precision: str | None = None) -> Compute:
    """Where and how to train; both are checked before anything else happens."""
    return Compute(
        None if device is None else str(find_device(device)),
        None if precision is None else check_choice("precision", precision, PRECISIONS),
    )


@app.command()
def demo(
    out: Annotated[Path, Out] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of initial parameters and training.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train for a few epochs only, to check that everything works.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Models to train at the same time.", show_default="cores, at most 4")
    ] = None,
    device: Annotated[str | None, Device] = None,
) -> None:
    """Train on four toy tasks and write a report with pictures."""
    from paper.demo import run_demo

    run_demo(out, seed, quick, jobs, tell=typer.echo, compute=_compute(device))


@app.command()
def bench(
    out: Annotated[Path, Out] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, smaller sizes.")] = False,
    methods: Annotated[
        str | None, typer.Option(help='Compare methods instead: "all", or names separated by commas.')
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Check the estimators' promises on tables, next to other models, instead.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, with --tables.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of these seeds; the others follow it.")] = 0,
    peers: Annotated[
        bool, typer.Option("--peers", help="Compare with other libraries, and write a page with plots, instead.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(help='Measure only this: with --tables "iris", otherwise "cnn"; names separated by commas.'),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(help="A table of your own to measure, with --tables: customers.csv:churn, file and target."),
    ] = None,
) -> None:
    """Measure the cost of training steps and predictions, or the estimators on tables."""
    from paper.bench import run_bench, run_peer_bench, run_table_bench
    from paper.bench.files import file_table

    if tables:
        own = [file_table(spec, typer.echo) for spec in file or ()]
        run_table_bench(out, range(first_seed, first_seed + seeds), tell=typer.echo, names=only, own=own)
        return
    if peers:
        run_peer_bench(out, quick, only)
        return
    run_bench(out, quick, methods, only)


@app.command()
def run(
    task: Annotated[str, Task],
    method: Annotated[str, MethodName],
    seed: Annotated[int, typer.Option(help="Seed of the split, the initial parameters and training.")] = 0,
    profile: Annotated[str, Profile] = "paper",
    context: Annotated[
        str | None, typer.Option(help="Context points of FSVI and similar methods: kmnist, monochrome, …")
    ] = None,
    out: Annotated[Path, Out] = RESULTS,
    device: Annotated[str | None, Device] = None,
    precision: Annotated[str | None, Precision] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Train a method on a task of the paper and evaluate it.

    The result is written as JSON. An existing result is reused; an interrupted run resumes. Under torchrun, several
    processes share the training.
    """
    from paper.records import model_path, result_path
    from paper.runner.runs import checked, train_along
    from paper.runner.runs import run as run_order
    from paper.tasks.registry import TASKS

    order, compute = checked(Order(task, method, cast(Any, profile), seed, context)), _compute(device, precision)
    if process_number() > 0:
        train_along(order, out, compute)
        return
    result = run_order(order, out, tell=_to_stderr if as_json else typer.echo, compute=compute)
    if as_json:
        path = result_path(out, order)
        files = {"result": str(path), "model": str(model_path(out, path))}
        typer.echo(json.dumps({**files, "metrics": dict(result.metrics)}, indent=2))
        return
    tables = TASKS[task].section.tables
    columns = [(table, column) for table in tables for column in table.columns if column.task == task]
    # A table with one column per task, like those of UCI, is named after the measure.
    shown = [
        (table.title if len({each.task for each in table.columns}) > 1 else column.metric.label, column)
        for table, column in columns
    ]
    texts = [
        f"{label} {column.metric.show(value)}" for label, column in shown if (value := column.value(result)) is not None
    ]
    typer.echo(f"{result.label}: {', '.join(texts)}")


@app.command()
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table1, table2, rotated, retina, reviews, continual, uci, toy or all.",
        ),
    ],
    methods: Annotated[str | None, typer.Option(help="Only these methods: names separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(help="The number of seeds.", show_default="the sweep's own")] = None,
    profile: Annotated[str, Profile] = "paper",
    jobs: Annotated[int, typer.Option(help="How many at the same time, each in a process of its own.")] = 1,
    backend: Annotated[str, typer.Option(help="Where these processes run: loky (this machine), ray or dask.")] = "loky",
    threads: Annotated[
        int | None, typer.Option(help="Threads per model.", show_default="1; without --jobs, as PyTorch chooses")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Make only this part of the runs, such as 1/4: for the jobs of a batch system.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the runs and how far they are, and make none of them.")
    ] = False,
    out: Annotated[Path, Out] = RESULTS,
    device: Annotated[str | None, Device] = None,
    precision: Annotated[str | None, Precision] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Make all runs behind a table or figure of the paper.

    Existing results are reused, and runs that other processes are making are waited for. With --list, runs are done,
    running, interrupted (the next command resumes them) or missing.
    """
    from fsvi.parallel import Workers
    from paper import sweeps

    if as_json and not show:
        raise typer.BadParameter("--json goes with --list.")
    compute = _compute(device, precision)
    workers = Workers(jobs, backend, 1 if threads is None else threads)
    part = None if shard is None else sweeps.Shard.parse(shard)
    groups = sweeps.plan(what, _listed(methods), seeds, cast(Any, profile), compute, part)
    if show:
        _show_states(groups, out, as_json)
        return
    if jobs == 1 and backend == "loky" and threads is None:
        sweeps.reproduce(groups, out, typer.echo, compute=compute)
    else:
        sweeps.reproduce(groups, out, typer.echo, workers, compute)


def _show_states(groups: list[Any], out: Path, as_json: bool) -> None:
    from paper.runner.groups import describe
    from paper.runner.states import run_state

    states = [run_state(order, out) for group in groups for order in group]
    if as_json:
        typer.echo(json.dumps([each.to_dict() for each in states], indent=2))
        return
    for each in states:
        typer.echo(f"{each.state:<12} {describe([each.order])}")
    counts = Counter(each.state for each in states)
    typer.echo(", ".join(f"{count} {state}" for state, count in counts.items()) + ".")


@app.command()
def tune(
    task: Annotated[str, Task],
    method: Annotated[str, MethodName],
    trials: Annotated[
        int, typer.Option(help="The number of settings to try, by all workers of the study and including earlier ones.")
    ] = 20,
    contexts: Annotated[str | None, typer.Option(help="Contexts to choose from, separated by commas.")] = None,
    profile: Annotated[str, Profile] = "quick",
    seed: Annotated[
        int, typer.Option(help="Seed of the held-out split and of training; the first one of --splits.")
    ] = 0,
    splits: Annotated[int, typer.Option(help="Random splits over which the value of a trial is averaged.")] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Where workers share the study: a journal file, or a database such as sqlite:///study.db.",
            show_default="a journal in the output folder",
        ),
    ] = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Stop after this time: 90 (seconds), 30m, 2h.", show_default="none")
    ] = None,
    out: Annotated[Path, Out] = STUDIES,
    device: Annotated[str | None, Device] = None,
    precision: Annotated[str | None, Precision] = None,
) -> None:
    """Search for hyperparameters on held-out training data.

    The objective is the log-likelihood. Test data are never used. The same command in several processes, also on
    several machines, makes them share the trials.
    """
    from paper.tuning.pruning import parse_duration
    from paper.tuning.study import tune as search

    order = Order(task, method, cast(Any, profile), seed)
    budget = None if time_budget is None else parse_duration(time_budget)
    compute = _compute(device, precision)
    summary = search(order, out, trials, _listed(contexts), typer.echo, splits, compute, storage, budget)
    typer.echo(f"Best: {summary['best']}")


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="The output folder of run and reproduce.")] = RESULTS,
    out: Annotated[Path | None, typer.Option(help="Folder to write into.", show_default="the results' folder")] = None,
) -> None:
    """Write tables and figures next to the paper's.

    All results go into one HTML page, and into Markdown.
    """
    from paper.report.write import write_report

    write_report(results, results if out is None else out, tell=typer.echo)


@app.command()
def diagnose(
    result: Annotated[Path, typer.Argument(help="A result file of run; its model must exist.")],
    device: Annotated[str | None, Device] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Check whether the uncertainty of a model can be trusted.

    Every finding is one sentence with the setting to change.
    """
    from paper.runner.diagnoses import diagnose_result

    diagnosis = diagnose_result(result, device)
    typer.echo(diagnosis.to_json() if as_json else str(diagnosis))


data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Find, get and check datasets.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data(as_json: Annotated[bool, Json] = False) -> None:
    """Show which datasets there are, and which of them are here."""
    rows = data.catalog()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['name']:<16} {row['where']:<28}  {row['description']}; {row['license']}")


@data_app.command("get")
def get_data(
    names: Annotated[list[str], typer.Argument(help="Names from `data list`.")],
) -> None:
    """Download datasets from their official addresses into the cache."""
    for name in names:
        data.fetch(name, tell=typer.echo)


@data_app.command("verify")
def verify_data(
    names: Annotated[list[str] | None, typer.Argument(help="Names; none for all.")] = None,
) -> None:
    """Check the hashes of the files that are here."""
    checks = [check for name in names or data.names() for check in data.verify(name)]
    for check in checks:
        typer.echo(f"{check[0]:<11} {check[1]}")
    wrong = [str(path) for verdict, _, path in checks if verdict == "wrong"]
    if wrong:
        raise FSVIError(f"{len(wrong)} of {len(checks)} files are not the published ones: delete {', '.join(wrong)}.")


def main() -> None:
    """Run the command line. Errors are one sentence, unless --debug asks for the traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        if num_processes() > 1 and arguments[:1] != ["run"]:
            raise FSVIError(f"{num_processes()} processes can only share run: start this command once.")
        app(arguments, prog_name="python -m paper")
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        if not isinstance(error, FSVIError):
            typer.echo(f"Error: {type(error).__name__}: {first_line(error)}; --debug shows where.", err=True)
        elif not error.is_told and process_number() == 0:
            typer.echo(f"Error: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
