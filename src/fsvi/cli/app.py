"""The commands and their options. The modules that do the work are imported when a command needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import fsvi
from fsvi.cost import keep_memory
from fsvi.errors import FSVIError
from fsvi.serialization import ESTIMATOR, file_kind
from fsvi.training.distributed import leave_quietly, num_processes, process_number
from fsvi.validation import check_fraction, first_line


def _completing(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """The names that a shell suggests after their first letters."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=fsvi.__doc__,
    epilog="Exit codes: 0 done, 1 bad input (one sentence says what), 2 bad usage, 130 interrupted.",
)

Json = typer.Option("--json", help="Print JSON for other programs.")
Device = typer.Option(help="Where to compute: cpu, cuda, mps or auto.", show_default="cpu")
_to_stderr = partial(typer.echo, err=True)


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


@app.command()
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
    calibrate: Annotated[bool, typer.Option(help="Hold out rows for calibration, from 400 rows on.")] = True,
    time: Annotated[
        str | None,
        typer.Option(
            help="The column that orders rows in time, so that the model is checked on later rows; 'rows' for their "
            "order in the file, 'no' for none.",
            show_default="the first column of dates",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes through the data at most.", min=1)] = None,
    max_rows: Annotated[int | None, typer.Option(help="Use a random sample of at most this many rows.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
    device: Annotated[str | None, Device] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, Json] = False,
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
        calibrate=calibrate,
        time=False if time == "no" else time,
        epochs=epochs,
        max_rows=max_rows,
        seed=seed,
        device=_checked(device),
        force=force,
    )
    page = out.with_suffix(".html") if report is None else report
    outcome = fit_file(table, out, page, options, partial(typer.echo, err=as_json), progress=None)
    if as_json:
        typer.echo(outcome.diagnosis.to_json())
        return
    typer.echo(str(outcome.diagnosis))
    typer.echo(f"Model: {outcome.model_path}. Report: {outcome.report_path}.")


@app.command()
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


@app.command()
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


def main() -> None:
    """Run the command line. Errors are one sentence, unless --debug asks for the traceback."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        _check_processes()
        app(arguments, prog_name="fsvi")
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        if isinstance(error, FSVIError) and error.is_told:
            leave_quietly()
        else:
            _say(_sentence(error))
        raise SystemExit(1) from error


def _check_processes() -> None:
    """Refuse commands that several processes would all do at the same time."""
    if num_processes() > 1:
        refused = FSVIError(f"{num_processes()} processes cannot share a command of fsvi: start it once.")
        refused.is_told = process_number() > 0
        raise refused


def _sentence(error: Exception) -> str:
    if isinstance(error, FSVIError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}; this is a bug in fsvi; --debug shows where."


def _say(sentence: str) -> None:
    """Print to the terminal in red, unless NO_COLOR is set (https://no-color.org)."""
    typer.secho(f"Error: {sentence}", fg=None if os.environ.get("NO_COLOR") else "red", err=True)
