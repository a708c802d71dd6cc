"""The commands and their options. The modules that do the work are imported when a command needs them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

import fsvi
from fsvi.cost import keep_memory
from fsvi.errors import FSVIError
from fsvi.parallel import BACKENDS
from fsvi.serialization import ESTIMATOR, file_kind
from fsvi.training.distributed import leave_quietly, num_processes, process_number
from fsvi.validation import check_choice, check_fraction, first_line

if TYPE_CHECKING:
    from fsvi.experiments.experiment import Compute


class Grouped(TyperGroup):
    """Commands under headings, in the order of this file."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for every heading."""
        commands = [(name, cast(Any, self.get_command(ctx, name))) for name in self.list_commands(ctx)]
        width = max(len(name) for name, _ in commands)
        for heading, group in groupby(commands, key=lambda item: item[1].rich_help_panel or "Commands"):
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), each.get_short_help_str(formatter.width)) for name, each in group]
                )


def _completing(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """The names that a shell suggests after their first letters."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def _tasks() -> list[str]:
    from fsvi.experiments.tasks.registry import TASKS

    return list(TASKS)


def _profiles() -> list[str]:
    from fsvi.experiments.experiment import PROFILES

    return list(PROFILES)


def _sweeps() -> list[str]:
    from fsvi.experiments.sweeps import SWEEPS

    return [*SWEEPS, "all"]


app = typer.Typer(
    cls=Grouped,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=fsvi.__doc__,
    epilog="Exit codes: 0 done, 1 bad input (one sentence says what), 2 bad usage, 130 interrupted.",
)

TRY, TRAIN, USE, DATA = "Try it", "Train and measure", "Use a model", "Data"
Task = typer.Argument(help="The task, such as fashion-mnist or uci-yacht.", autocompletion=_completing(_tasks))
MethodName = typer.Argument(
    help="The method, such as fsvi, map or ensemble:map.", autocompletion=_completing(fsvi.method_names)
)
Profile = typer.Option(
    help="paper: the paper's protocol; desk: about an hour (cifar10, retina); quick: minutes; smoke: seconds.",
    autocompletion=_completing(_profiles),
)
Out = typer.Option(help="Output folder; created if missing.")
Json = typer.Option("--json", help="Print JSON for other programs.")
Device = typer.Option(help="Where to compute: cpu, cuda, mps or auto.", show_default="cpu")
Precision = typer.Option(
    help="bf16 or fp16 trains the network in that type, faster where the processor has it.", show_default="float32"
)
Jobs = typer.Option(help="How many at the same time, each in a process of its own.")
Backend = typer.Option(
    help="Where these processes run: loky (this machine), ray or dask (here or on a cluster).",
    autocompletion=_completing(lambda: list(BACKENDS)),
)
_to_stderr = partial(typer.echo, err=True)


def _listed(names: str | None) -> tuple[str, ...]:
    """The names in a comma-separated option."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def _compute(device: str | None, precision: str | None = None) -> Compute:
    """Where and how to train; both are checked before anything else happens."""
    from fsvi.experiments.experiment import Compute
    from fsvi.training.step import PRECISIONS

    return Compute(_checked(device), None if precision is None else check_choice("precision", precision, PRECISIONS))


def _checked(device: str | None) -> str | None:
    """The name of a device that works, before anything else happens."""
    from fsvi.networks.devices import find_device

    return None if device is None else str(find_device(device))


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
    keep_memory()


@app.command(rich_help_panel=TRY)
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
    from fsvi.experiments.demo import run_demo

    run_demo(out, seed, quick, jobs, tell=typer.echo, compute=_compute(device))


@app.command(rich_help_panel=TRAIN)
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
    from fsvi.cli.bench_files import file_table
    from fsvi.experiments.bench import run_bench, run_peer_bench, run_table_bench

    if tables:
        own = [file_table(spec, typer.echo) for spec in file or ()]
        run_table_bench(out, range(first_seed, first_seed + seeds), tell=typer.echo, names=only, own=own)
        return
    if peers:
        run_peer_bench(out, quick, only)
        return
    run_bench(out, quick, methods, only)


@app.command(rich_help_panel=TRAIN)
def run(
    task: Annotated[str, Task],
    method: Annotated[str, MethodName],
    seed: Annotated[int, typer.Option(help="Seed of the split, the initial parameters and training.")] = 0,
    profile: Annotated[str, Profile] = "paper",
    context: Annotated[
        str | None, typer.Option(help="Context points of FSVI and similar methods: kmnist, monochrome, …")
    ] = None,
    out: Annotated[Path, Out] = Path("results"),
    device: Annotated[str | None, Device] = None,
    precision: Annotated[str | None, Precision] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Train a method on a task of the paper and evaluate it.

    The result is written as JSON. An existing result is reused; an interrupted run resumes. Under torchrun, several
    processes share the training.
    """
    from fsvi.experiments.experiment import Order
    from fsvi.experiments.results import model_path, result_path
    from fsvi.experiments.runner.runs import checked, train_along
    from fsvi.experiments.runner.runs import run as run_order
    from fsvi.experiments.tasks.registry import TASKS

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


@app.command(rich_help_panel=TRAIN)
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table1, table2, rotated, retina, reviews, continual, uci, toy or all.",
            autocompletion=_completing(_sweeps),
        ),
    ],
    methods: Annotated[str | None, typer.Option(help="Only these methods: names separated by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(help="The number of seeds.", show_default="the sweep's own")] = None,
    profile: Annotated[str, Profile] = "paper",
    jobs: Annotated[int, Jobs] = 1,
    backend: Annotated[str, Backend] = "loky",
    threads: Annotated[
        int | None, typer.Option(help="Threads per model.", show_default="1; without --jobs, as PyTorch chooses")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Make only this part of the runs, such as 1/4: for the jobs of a batch system.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the runs and how far they are, and make none of them.")
    ] = False,
    out: Annotated[Path, Out] = Path("results"),
    device: Annotated[str | None, Device] = None,
    precision: Annotated[str | None, Precision] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Make all runs behind a table or figure of the paper.

    Existing results are reused, and runs that other processes are making are waited for. With --list, runs are done,
    running, interrupted (the next command resumes them) or missing.
    """
    from fsvi.experiments import sweeps
    from fsvi.parallel import Workers

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
    from fsvi.experiments.runner.groups import describe
    from fsvi.experiments.runner.states import run_state

    states = [run_state(order, out) for group in groups for order in group]
    if as_json:
        typer.echo(json.dumps([each.to_dict() for each in states], indent=2))
        return
    for each in states:
        typer.echo(f"{each.state:<12} {describe([each.order])}")
    counts = Counter(each.state for each in states)
    typer.echo(", ".join(f"{count} {state}" for state, count in counts.items()) + ".")


@app.command(rich_help_panel=TRAIN)
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
    out: Annotated[Path, Out] = Path("studies"),
    device: Annotated[str | None, Device] = None,
    precision: Annotated[str | None, Precision] = None,
) -> None:
    """Search for hyperparameters on held-out training data.

    The objective is the log-likelihood. Test data are never used. The same command in several processes, also on
    several machines, makes them share the trials.
    """
    from fsvi.experiments.experiment import Order
    from fsvi.experiments.tuning.pruning import parse_duration
    from fsvi.experiments.tuning.study import tune as search

    order = Order(task, method, cast(Any, profile), seed)
    budget = None if time_budget is None else parse_duration(time_budget)
    compute = _compute(device, precision)
    summary = search(order, out, trials, _listed(contexts), typer.echo, splits, compute, storage, budget)
    typer.echo(f"Best: {summary['best']}")


@app.command(rich_help_panel=TRAIN)
def report(
    results: Annotated[Path, typer.Argument(help="The output folder of run and reproduce.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="Folder to write into.", show_default="the results' folder")] = None,
) -> None:
    """Write tables and figures next to the paper's.

    All results go into one HTML page, and into Markdown.
    """
    from fsvi.experiments.report.write import write_report

    write_report(results, results if out is None else out, tell=typer.echo)


@app.command(rich_help_panel=USE)
def fit(
    table: Annotated[
        Path, typer.Argument(help="A CSV file whose first line has the columns' names, or a Parquet file.")
    ],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="File to write the model to.")] = Path("model.fsvi"),
    report: Annotated[
        Path | None, typer.Option(help="HTML page to write.", show_default="next to the model, .html")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classification or regression.", show_default="detected from the target")
    ] = None,
    number: Annotated[list[str] | None, typer.Option(help="Read this column as numbers; may be repeated.")] = None,
    category: Annotated[list[str] | None, typer.Option(help="Read this column as categories; may be repeated.")] = None,
    date: Annotated[list[str] | None, typer.Option(help="Read this column as dates; may be repeated.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave this column out; may be repeated.")] = None,
    weight: Annotated[str | None, typer.Option(help="A column that says how many times each row counts.")] = None,
    class_weight: Annotated[str | None, typer.Option(help="balanced: all classes count the same.")] = None,
    method: Annotated[
        str,
        typer.Option(help="The method, such as fsvi or ensemble:map.", autocompletion=_completing(fsvi.method_names)),
    ] = "fsvi",
    test: Annotated[float, typer.Option(help="Share of the rows that measures the model.")] = 0.2,
    calibrate: Annotated[bool, typer.Option(help="Hold out rows for calibration, from 400 rows on.")] = True,
    compare: Annotated[bool, typer.Option(help="Train MAP too, and compare with it in the report.")] = True,
    epochs: Annotated[int | None, typer.Option(help="Passes through the data at most.", min=1)] = None,
    max_rows: Annotated[int | None, typer.Option(help="Use a random sample of at most this many rows.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
    device: Annotated[str | None, Device] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Train a model on a table in a file, and say whether to trust it.

    Types of columns and the task are detected and printed; options override them.
    """
    from fsvi.cli.fit import FitOptions, fit_file

    kinds = {"number": number, "category": category, "date": date, "ignore": ignore}
    columns: dict[str, str] = {}
    for kind, names in kinds.items():
        for name in names or []:
            if name in columns:
                raise typer.BadParameter(f"--{columns[name]} {name} and --{kind} {name} contradict each other.")
            columns[name] = kind
    options = FitOptions(
        target=target,
        task=task,
        columns=columns,
        weight=weight,
        class_weight=class_weight,
        method=method,
        test_fraction=test,
        calibrate=calibrate,
        compare=compare,
        epochs=epochs,
        max_rows=max_rows,
        seed=seed,
        device=_checked(device),
        force=force,
    )
    page = out.with_suffix(".html") if report is None else report
    outcome = fit_file(table, out, page, options, typer.echo, progress=None)
    typer.echo(outcome.assessment.headline)
    for check in outcome.assessment.checks:
        typer.echo(f"  {'yes' if check.passed else 'NO '}  {check.name} {check.sentence}")
    typer.echo(f"Model: {outcome.model_path}. Report: {outcome.report_path}.")


@app.command(rich_help_panel=USE)
def predict(
    model: Annotated[
        Path, typer.Argument(help="A file that `fsvi fit`, an estimator's or method's `save`, or `fsvi run` wrote.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="For a table's model, rows with the same columns: .csv, .parquet. For others, inputs as the network "
            "takes them: .npy, .npz (x), .csv, .parquet. If --out is a folder, any number of files, folders and "
            "patterns such as 'part-*.parquet'."
        ),
    ],
    refer_for: Annotated[
        float | None, typer.Option(help="Refer as many inputs as it takes for the others to be so accurate, as 0.95.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="To choose the threshold by: held-out inputs x and labels y in a .npz, or rows with the target column."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure to be of that accuracy.")] = 0.9,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .csv, .parquet or .json; or a folder, which gets a file for each of the inputs.",
            show_default="CSV to the terminal",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to carry over to a folder of predictions; may be repeated.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Files to score at the same time, if --out is a folder.", min=1)] = 1,
    backend: Annotated[
        str, typer.Option(help="Where to score them: loky (this machine), ray or dask (also a cluster).")
    ] = "loky",
    samples: Annotated[
        int | None,
        typer.Option(help="Draws of the function.", min=1, show_default="100, or as a table's model was made"),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Inputs in a pass of the network.", min=1)] = 512,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the draws.", show_default="0, or as a table's model was made")
    ] = None,
    net: Annotated[
        str | None, typer.Option(help="module:function that makes the network, where the file does not describe it.")
    ] = None,
    device: Annotated[str | None, Device] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Predict inputs in a file, and refer the uncertain ones.

    A row for each input: label, probability, entropy, mutual_information and decision (keep or refer) for classes;
    mean, std, lower and upper (95%) for real numbers.

    If --out is a folder, files of any size are read part by part. Each file of predictions appears when it is
    complete. After an interruption, the same command makes the missing ones.
    """
    from fsvi.cli import files
    from fsvi.cli.predict import calibrate, predict_file
    from fsvi.cli.predict_table import calibrate_table, predict_table
    from fsvi.scoring import predict_files
    from fsvi.scoring.arrays import Sampling, load_model
    from fsvi.scoring.rows import load_estimator

    if (refer_for is None) != (calibration is None):
        raise typer.BadParameter("--refer-for and --calibration go together: give both, or neither.")
    if net is not None and not all(net.partition(":")):
        raise typer.BadParameter(f"--net {net} is not of the form module:function.")
    if as_json and out is not None:
        raise typer.BadParameter("--json prints to the terminal: with --out, let the file's name end in .json.")
    check_fraction("--confidence", confidence)
    if refer_for is not None:
        check_fraction("--refer-for", refer_for)
    into_folder = out is not None and files.is_folder(out)
    if not into_folder:
        files.check_one(inputs, keep)
    if out is not None and not into_folder:
        files.check_table(out)
    options = {"samples": samples, "seed": seed, "batch_size": batch_size}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    is_table = file_kind(model) == ESTIMATOR
    trained: Any = load_estimator(model, net, device) if is_table else load_model(model, net, device)
    # A table's model has its own draws: a calibration promises nothing for others.
    own = {"samples": trained.num_samples, "seed": trained.seed_} if is_table else {}
    sampling = Sampling(**{**own, **given})
    referral = None
    if refer_for is not None and calibration is not None:
        learn = calibrate_table if is_table else calibrate
        referral = learn(trained, calibration, sampling, refer_for, confidence)
    if out is not None and into_folder:
        given |= {"net": net, "device": device, "jobs": jobs, "backend": backend}
        report = predict_files(model, inputs, out, keep=keep or (), referral=referral, tell=_to_stderr, **given)
        _to_stderr(str(report))
        if report.failed:
            raise FSVIError(report.failures())
    elif is_table:
        _show(predict_table(trained, Path(inputs[0]), sampling, _to_stderr, referral), out, as_json)
    else:
        _show(predict_file(trained, Path(inputs[0]), sampling, referral), out, as_json)


@app.command(rich_help_panel=USE)
def export(
    model: Annotated[Path, typer.Argument(help="A file that a method's or a calibration's `save` wrote.")],
    out: Annotated[Path, typer.Argument(help="File to write: .onnx, or .pt2 for torch.export.")],
    draws: Annotated[
        int | None,
        typer.Option(help="Draws of the function in the file.", min=1, show_default="16, or those of a calibration"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the draws.", show_default="0, or that of a calibration")
    ] = None,
    example: Annotated[
        Path | None, typer.Option(help="Inputs like those to come: .npy, .npz (x), .csv, .parquet.", show_default=False)
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Names of the classes, separated by commas.", show_default=False)
    ] = None,
    net: Annotated[
        str | None, typer.Option(help="module:function that makes the network, where the file does not describe it.")
    ] = None,
) -> None:
    """Write a model as one graph for ONNX Runtime or torch.export, which run it without fsvi.

    It takes inputs and returns mean, entropy and mutual_information for classes, mean and std for real numbers.
    """
    from fsvi.cli.files import read_inputs
    from fsvi.errors import InvalidInputError
    from fsvi.scoring.arrays import as_inputs, load_model

    if file_kind(model) == ESTIMATOR:
        raise InvalidInputError(
            f"{model} is a table's model, whose columns fsvi encodes before the network sees them: use fsvi predict."
        )
    method = load_model(model, net)
    x = None if example is None else as_inputs(method, read_inputs(example), example)
    given = {name: value for name, value in {"num_samples": draws, "seed": seed}.items() if value is not None}
    names = None if labels is None else [name.strip() for name in labels.split(",")]
    method.export(out, example=x, labels=names, **given)
    _to_stderr(f"Wrote {out} ({out.stat().st_size / 2**20:.1f} MiB).")


def _show(predictions: Any, out: Path | None, as_json: bool) -> None:
    """Print predictions, or write them to a file."""
    from fsvi.cli import files

    if out is None:
        shown = (
            files.as_json(predictions.columns, predictions.document()) if as_json else files.as_csv(predictions.columns)
        )
        typer.echo(shown, nl=False)
    else:
        files.write_table(out, predictions.columns, predictions.document())
    _to_stderr(str(predictions))


@app.command(rich_help_panel=USE)
def diagnose(
    result: Annotated[Path, typer.Argument(help="A result file of run; its model must exist.")],
    device: Annotated[str | None, Device] = None,
    as_json: Annotated[bool, Json] = False,
) -> None:
    """Check whether the uncertainty of a model can be trusted.

    Every finding is one sentence with the setting to change.
    """
    from fsvi.experiments.runner.diagnoses import diagnose_result

    diagnosis = diagnose_result(result, device)
    typer.echo(diagnosis.to_json() if as_json else str(diagnosis))


data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Find, get and check datasets.")
app.add_typer(data_app, name="data", rich_help_panel=DATA)
_Names = _completing(fsvi.data.names)


@data_app.command("list")
def list_data(as_json: Annotated[bool, Json] = False) -> None:
    """Show which datasets there are, and which of them are here."""
    rows = fsvi.data.catalog()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        size = f"{row.size / 1e6:.1f} MB" if row.size else ""
        typer.echo(f"{row.name:<14} {row.where:<28} {size:>9}  {row.description}; {row.license}")


@data_app.command("get")
def get_data(
    names: Annotated[list[str], typer.Argument(help="Names from `fsvi data list`.", autocompletion=_Names)],
) -> None:
    """Download datasets from their official addresses into the cache."""
    for name in names:
        fsvi.data.fetch(name, tell=typer.echo)


@data_app.command("verify")
def verify_data(
    names: Annotated[list[str] | None, typer.Argument(help="Names; none for all.", autocompletion=_Names)] = None,
) -> None:
    """Check the hashes of the files that are here."""
    checks = [check for name in names or fsvi.data.names() for check in fsvi.data.verify(name)]
    for check in checks:
        typer.echo(f"{check.result:<11} {check.file}")
    wrong = [str(check.path) for check in checks if check.result == "wrong"]
    if wrong:
        raise FSVIError(f"{len(wrong)} of {len(checks)} files are not the published ones: delete {', '.join(wrong)}.")


def main() -> None:
    """Run the command line. Errors are one sentence, unless --debug asks for the traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        _check_processes(arguments)
        app(arguments, prog_name="fsvi")
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        if isinstance(error, FSVIError) and error.is_told:
            leave_quietly()
        else:
            _say(_sentence(error))
        raise SystemExit(1) from error


def _check_processes(arguments: list[str]) -> None:
    """Refuse commands that several processes would all do at the same time."""
    if num_processes() > 1 and arguments[:1] != ["run"]:
        refused = FSVIError(f"{num_processes()} processes can only share fsvi run: start this command once.")
        refused.is_told = process_number() > 0
        raise refused


def _sentence(error: Exception) -> str:
    if isinstance(error, FSVIError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}; this is a bug in fsvi; --debug shows where."


def _say(sentence: str) -> None:
    """Print to the terminal in red, unless NO_COLOR is set (https://no-color.org)."""
    typer.secho(f"Error: {sentence}", fg=None if os.environ.get("NO_COLOR") else "red", err=True)
