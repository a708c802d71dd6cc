"""The command line. The modules that do the work are imported when a command needs them: torch takes seconds."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsvi
from fsvi.errors import FSVIError

_KINDS = ("number", "category", "date", "ignore")
_EXIT_CODES = "Exit codes: 0 done, 1 bad input (one sentence says what), 2 bad usage, 130 interrupted."


def _to_stderr(said: object) -> None:
    print(said, file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False})


def make_parser() -> argparse.ArgumentParser:
    """Commands and their options."""
    parser = _Parser(prog="fsvi", description=fsvi.__doc__, epilog=_EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"fsvi {fsvi.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for add in (_fit_parser, _predict_parser, _export_parser, _diagnose_parser):
        add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Errors are one sentence, unless --debug asks for the traceback.

    Args:
        arguments: What stands behind `fsvi`; None for `sys.argv`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = "--debug" in given
    parser = make_parser()
    options = parser.parse_args([each for each in given if each != "--debug"])
    if options.command is None:
        parser.print_help()
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        from fsvi.ranks import check_alone

        check_alone(f"fsvi {options.command}")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(f"Warning: {message}", file=sys.stderr)
            options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if is_debug:
            raise
        _say(error)
        sys.exit(1)
    sys.exit(0)


def _command(commands: Any, run: Callable[[argparse.Namespace], None], about: str, more: str = "") -> Any:
    """Add the command that `run` does and is called after, and return what adds its options."""
    parser = commands.add_parser(run.__name__[1:], help=about, description=f"{about}{more}")
    parser.set_defaults(run=run, parser=parser)
    return parser.add_argument


def _fit_parser(commands: Any) -> None:
    more = " Types of columns and the task are detected and printed; options override them."
    add = _command(commands, _fit, "Train a model on a table in a file, and say whether to trust it.", more)
    add("table", type=Path, help="a CSV file whose first line has the columns' names, or a Parquet file")
    add("--target", required=True, help="the column to predict")
    add("--out", type=Path, default=Path("model.fsvi"), help="file for the model; the report goes next to it, as .html")
    add("--task", help="classification or regression (default: detected from the target)")
    for kind in _KINDS:
        what = "leave this column out" if kind == "ignore" else f"read this column as type {kind}"
        add(f"--{kind}", action="append", default=[], metavar="COLUMN", help=f"{what}; may be repeated")
    add("--weight", help="a column that says how many times each row counts")
    add("--class-weight", help="balanced: all classes count the same")
    add("--method", default="fsvi", help="the method, such as fsvi or ensemble:map (default: %(default)s)")
    time = "the column that orders rows in time, so that the model is checked on later rows; 'rows' for their order in "
    add("--time", help=f"{time}the file, 'no' for none (default: the first column of dates)")
    add("--epochs", type=int, help="passes through the data at most")
    add("--seed", type=int, default=0, help="seed of the split and of training (default: %(default)s)")
    _add_device(add)
    add("--force", action="store_true", help="replace files that exist")
    add("--json", action="store_true", help="print verdict, findings and metrics as one JSON object")


def _fit(options: argparse.Namespace) -> None:
    from fsvi.cli.fit import fit_file

    options.columns = {name: kind for kind in _KINDS for name in getattr(options, kind)}
    options.report = options.out.with_suffix(".html")
    diagnosis = fit_file(options, _to_stderr if options.json else print)
    print(diagnosis.to_json() if options.json else f"{diagnosis}\nModel: {options.out}. Report: {options.report}.")


def _predict_parser(commands: Any) -> None:
    columns = (
        "\n\nA row for each input: label, probability, entropy, mutual_information, the probability of each class and\n"
        "decision (keep or refer) for classes; mean, std, lower and upper (95%) for real numbers.\n\n"
        "If --out is a folder, files of any size are read part by part. Each file of predictions appears when it is\n"
        "complete. After an interruption, the same command makes the missing ones."
    )
    add = _command(commands, _predict, "Predict inputs in files, and refer the uncertain ones.", columns)
    add("model", type=Path, help="a file that `fsvi fit`, or an estimator's or method's `save` wrote")
    rows = "for a table's model, rows with the same columns: .csv, .parquet; for others, inputs as the network takes "
    more = "them: .npy, .npz (x), .csv, .parquet; if --out is a folder, files, folders and patterns"
    add("inputs", nargs="+", help=rows + more)
    add("--refer-for", type=float, help="refer as many inputs as it takes for the others to be so accurate, as 0.95")
    held_out = "held-out inputs x and labels y in a .npz, or rows with the target column, to choose the threshold by"
    add("--calibration", type=Path, help=held_out)
    add("--confidence", type=float, default=0.9, help="how sure to be of that accuracy (default: %(default)s)")
    add("--out", type=Path, help="file to write: .csv or .parquet; or a folder, with a file for each input")
    add("--keep", action="append", default=[], help="a column to carry over to the predictions; may be repeated")
    add("--jobs", type=int, default=1, help="files to score at the same time, if --out is a folder")
    add("--samples", type=int, help="draws of the function (default: 100, or as a table's model was made)")
    _add_net(add)
    _add_device(add)


def _predict(options: argparse.Namespace) -> None:
    from fsvi.scoring.files import predict_file, predict_files
    from fsvi.scoring.scorers import ModelFile
    from fsvi.scoring.writing import WRITERS
    from fsvi.validation import check_choice, check_fraction

    out, is_folder = options.out, options.out is not None and (options.out.is_dir() or not options.out.suffix)
    if (options.refer_for is None) != (options.calibration is None):
        options.parser.error("--refer-for and --calibration go together: give both, or neither.")
    for name, share in (("--refer-for", options.refer_for or 0.0), ("--confidence", options.confidence)):
        check_fraction(name, share)
    first = Path(options.inputs[0])
    if not is_folder and (len(options.inputs) > 1 or first.is_dir() or ("*" in first.name and not first.exists())):
        raise FSVIError("more than one file needs a folder for the predictions: pass --out scored/.")
    if out is not None and not is_folder:
        check_choice("the ending of the output", out.suffix.lower(), WRITERS)
    given = {name: getattr(options, name) for name in ("net", "device", "samples")}
    scorer = ModelFile(options.model, **given).load()
    if options.calibration is not None:
        scorer.choose_referral(options.calibration, options.refer_for, options.confidence)
    if is_folder:
        given |= {"keep": options.keep, "referral": scorer.referral, "jobs": options.jobs, "tell": _to_stderr}
        report = predict_files(options.model, options.inputs, out, **given)
        _to_stderr(report)
        if report.failed:
            raise FSVIError(report.failures())
        return
    with tempfile.TemporaryDirectory() as folder:  # what is printed is written first, so that a failure prints nothing
        printed = Path(folder, "predictions.csv")
        counts = predict_file(scorer, first, out or printed, options.keep, _to_stderr)
        if out is None:
            with open(printed, encoding="utf-8", newline="") as text:
                shutil.copyfileobj(text, sys.stdout)
    referred = f": {counts['keep']} to keep, {counts['refer']} to refer. {scorer.referral}" if scorer.referral else "."
    _to_stderr(f"{counts['inputs']} predictions{referred}")


def _export_parser(commands: Any) -> None:
    about = "Write a model as one graph for ONNX Runtime or torch.export, which run it without fsvi."
    returns = " It takes inputs and returns mean, entropy and mutual_information for classes, mean and std for numbers."
    add = _command(commands, _export, about, returns)
    add("model", type=Path, help="a file that a method's or a calibration's `save` wrote")
    add("out", type=Path, help="file to write: .onnx, or .pt2 for torch.export")
    add("--draws", type=int, help="draws of the function in the file (default: 16, or those of a calibration)")
    add("--example", type=Path, help="inputs like those to come: .npy, .npz (x), .csv, .parquet")
    add("--labels", help="names of the classes, separated by commas")
    _add_net(add)


def _export(options: argparse.Namespace) -> None:
    from fsvi.errors import InvalidInputError
    from fsvi.scoring.scorers import ModelFile, read_inputs
    from fsvi.serialization import ESTIMATOR, file_kind

    if file_kind(options.model) == ESTIMATOR:
        raise InvalidInputError(
            f"{options.model} is a table's model, whose columns fsvi encodes before the network sees them: use fsvi "
            "predict."
        )
    method = ModelFile(options.model, options.net).load().model
    given: dict[str, Any] = {} if options.draws is None else {"num_samples": options.draws}
    if options.example is not None:
        given["example"] = read_inputs(method, options.example)
    if options.labels is not None:
        given["labels"] = [name.strip() for name in options.labels.split(",")]
    method.export(options.out, **given)
    _to_stderr(f"Wrote {options.out} ({options.out.stat().st_size / 2**20:.1f} MiB).")


def _diagnose_parser(commands: Any) -> None:
    add = _command(commands, _diagnose, "Check on held-out rows whether a model can be trusted.")
    add("model", type=Path, help="a file that `fsvi fit`, or an estimator's or method's `save` wrote")
    add("data", type=Path, help="rows with the target column, or inputs x and targets y in a .npz file")
    _add_net(add)
    _add_device(add)
    add("--json", action="store_true", help="print verdict, findings and metrics as one JSON object")


def _diagnose(options: argparse.Namespace) -> None:
    from fsvi.calibration import Calibrated
    from fsvi.diagnosis import diagnose
    from fsvi.scoring.scorers import ModelFile

    scorer = ModelFile(options.model, options.net, options.device).load()
    model = scorer.model.method if isinstance(scorer.model, Calibrated) else scorer.model
    found = diagnose(model, scorer.held_out(options.data), refit=False)
    print(found.to_json() if options.json else found)


def _add_net(add: Any) -> None:
    add("--net", help="module:function that makes the network, where the file does not describe it")


def _add_device(add: Any) -> None:
    add("--device", help="where to compute: cpu, cuda, mps or auto (default: cpu)")


def _say(error: Exception) -> None:
    """One sentence."""
    if isinstance(error, BrokenPipeError):  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    said = str(error)
    if isinstance(error, OSError) and not isinstance(error, FSVIError):  # a full disk, a folder that is gone
        said = f"{error.filename or 'the output'} cannot be written or read: {error.strerror or error}."
    elif not isinstance(error, FSVIError):
        lines = said.strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0]}; this is a bug in fsvi; --debug shows where."
    _to_stderr(f"Error: {said}")
