"""`fsvi fit`: from a table in a file to a model in a file, and a page that says whether to trust it."""

from __future__ import annotations

from argparse import Namespace as Options
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.diagnosis import Diagnosis, diagnose, write_report
from fsvi.diagnosis.findings import shown
from fsvi.diagnosis.tables import train
from fsvi.errors import InvalidInputError
from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.serialization import building_from, check_writable
from fsvi.tables import Table, TableEncoder, read_table
from fsvi.tables.columns import as_numbers, detect_kind, missing
from fsvi.tables.table import label
from fsvi.validation import check_choice

TASKS = ("classification", "regression")
_MOST_CLASSES = 10
"""Whole numbers with at most this many different values are classes."""
_SHOWN = 4
"""Categories that are listed."""
_FEWEST_ROWS = 20
_CALIBRATED_FROM = 400
"""With fewer rows, none are held out for calibration."""
Tell = Callable[[str], object]


def fit_file(options: Options, tell: Tell) -> Diagnosis:
    """Train on the table in a file, and write the model and its report. Everything is checked before training."""
    path = options.table
    for written in (options.out, options.report):
        if written.exists() and not options.force:
            raise InvalidInputError(f"{written} exists: choose another name, or replace it with --force.")
        check_writable(written.parent)
    table = read_table(path)
    tell(f"{path}: {len(table)} rows, {len(table.names)} columns.")
    facts = {"table": path.name, "rows": len(table), "target": options.target}
    with building_from(path):
        table, y, weights, task = _examples(table, options, tell)
        columns = _column_types(table, options, tell)
        encoder = TableEncoder.learn(table, columns)
        _tell_columns(encoder, table, tell)
        encoded = encoder.transform(table)
        if (encoded == encoded[0]).all():
            raise InvalidInputError("every column is constant: there is nothing to learn from.")
        model = _model(task, columns, options)
        tell(f"Training {options.method} on {len(y)} rows …")
        train(model, table, y, weights, len(y) >= _CALIBRATED_FROM)
        model.target_name_ = options.target
        tell("Checking it on held-out rows …")
        diagnosis = diagnose(model, (table, y, weights), time=False if options.time == "no" else options.time)
    model.save(options.out)
    left_out = "; ".join(f"{name}: {reason}" for name, reason in encoder.left_out)
    facts |= {"task": task, "method": options.method, "seed": options.seed, "left out": left_out}
    write_report(options.report, diagnosis, f"{options.target}: can the model be trusted?", facts)
    return diagnosis


def _examples(
    table: Table, options: Options, tell: Tell
) -> tuple[Table, NDArray[Any], NDArray[np.float64] | None, str]:
    """The rows that have a target, their targets, how many times each row counts, and the task."""
    others = [options.target, *([options.weight] if options.weight else [])]
    for name in (*others, *options.columns):
        check_choice("column", name, table.names)
    if options.target in options.columns:
        raise InvalidInputError(f"{options.target!r} is the target: use --task to say what it holds.")
    gaps = missing(table.columns[options.target])
    if gaps.any():
        tell(f"{gaps.sum()} rows lack the target {options.target!r} and are left out.")
        table = table.take(~gaps)
    if len(table) < _FEWEST_ROWS:
        raise InvalidInputError(f"there are {len(table)} usable rows: at least {_FEWEST_ROWS} are needed.")
    task = _task(options, table)
    y = _labels(table.columns[options.target]) if task == "classification" else _numbers(options.target, table)
    if len(np.unique(y)) < 2:
        raise InvalidInputError(f"every row has the same target, {y[0]}: there is nothing to learn.")
    weights = None if options.weight is None else _numbers(options.weight, table)
    found = f"{len(np.unique(y))} classes" if task == "classification" else f"{shown(y.min())} to {shown(y.max())}"
    how = "" if options.task else ", detected; --task overrides it"
    tell(f"Target {options.target!r}: {task} ({found}{how}).")
    return table.without(others), y, weights, task


def _task(options: Options, table: Table) -> str:
    if options.task is not None:
        return check_choice("--task", options.task, TASKS)
    kind = detect_kind(table.columns[options.target], read_numbers=True)
    if kind != "number":
        if kind == "date":
            raise InvalidInputError(f"the target {options.target!r} holds dates: make it a number of days first.")
        return "classification"
    numbers = as_numbers(options.target, table)
    is_whole = bool((numbers == np.round(numbers)).all())
    distinct = len(np.unique(numbers))
    return "classification" if distinct == 2 or (is_whole and distinct <= _MOST_CLASSES) else "regression"


def _labels(values: NDArray[Any]) -> NDArray[Any]:
    y = np.array([label(value) for value in values.tolist()])
    num = len(np.unique(y))
    if 2 * num > len(y):
        raise InvalidInputError(
            f"the target has {num} different values in {len(y)} rows, too many for classes: is it the right column?"
        )
    return y


def _numbers(name: str, table: Table) -> NDArray[np.float64]:
    numbers = as_numbers(name, table)
    if np.isnan(numbers).any():
        line = int(table.lines[np.flatnonzero(np.isnan(numbers))[0]])
        raise InvalidInputError(f"column {name!r} has no value in line {line}: every row needs one.")
    return numbers


def _column_types(table: Table, options: Options, tell: Tell) -> dict[str, str]:
    """The type of every column: what the user says, or what is detected; row numbers are left out."""
    types = dict(options.columns)
    for name, values in table.columns.items():
        if name in types:
            continue
        kind = detect_kind(values, read_numbers=True)
        if kind == "number" and (np.diff(np.sort(as_numbers(name, table))) == 1).all():  # NaN differs by NaN
            tell(f"Column {name!r} only counts rows and is left out; --number {name} keeps it.")
            kind = "ignore"
        if kind == "text":
            tell(f"Column {name!r} has other text in nearly every row and is left out; --category {name} keeps it.")
            kind = "ignore"
        types[name] = kind
    return types


def _tell_columns(encoder: TableEncoder, table: Table, tell: Tell) -> None:
    for column in encoder.columns:
        values = column.parse(table)
        gaps = missing(values)
        said = _described(column, values[~gaps]) if not gaps.all() else "always missing"
        tell(f"  {column.name}: {column.kind}, {said}" + f" ({gaps.sum()} missing)" * bool(gaps.any()))


def _described(column: Any, known: NDArray[Any]) -> str:
    """The values in a few words: the most frequent categories, or the range."""
    if column.kind == "category":
        levels = [*column.levels, *column.rare]
        return ", ".join(levels[:_SHOWN]) + f" and {len(levels) - _SHOWN} more" * (len(levels) > _SHOWN)
    if column.kind == "date":
        order = {"%m/%d/%Y": ", read as month/day/year", "%d/%m/%Y": ", read as day/month/year"}
        first, last = (np.datetime64(int(day), "D") for day in (known.min(), known.max()))
        return f"{first} to {last}{order.get(column.form, '')}"
    low, high = shown(known.min()), shown(known.max())
    return f"always {low}" if low == high else f"{low} to {high}"


def _model(task: str, columns: dict[str, str], options: Options) -> Any:
    """The estimator, not yet fitted."""
    settings: dict[str, Any] = {"columns": columns, "epochs": options.epochs, "device": options.device}
    settings |= {"random_state": options.seed, "progress": None}
    if task == "classification":
        return FSVIClassifier(options.method, class_weight=options.class_weight, **settings)
    if options.class_weight is not None:
        raise InvalidInputError("--class-weight is for classification: leave it out.")
    return FSVIRegressor(options.method, **settings)
