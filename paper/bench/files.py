"""Users' own files as tables of `fsvi bench --tables`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.cli.fit import FitOptions, Tell, column_types, examples_of
from fsvi.errors import InvalidInputError
from fsvi.tables import TableEncoder, read_table
from paper.bench.tables import Table

_FEWEST = 4
"""Rows of a class: with fewer, a quarter of the rows cannot hold one."""


def file_table(spec: str, tell: Tell) -> Table:
    """A table of the bench, read as `fsvi fit` reads it.

    Args:
        spec: A CSV or Parquet file and its target, as "customers.csv:churn".
        tell: A function that shows a line of text.
    """
    path, colon, target = spec.rpartition(":")
    if not colon or not path or not target:
        raise InvalidInputError(f"--file {spec!r} must name a file and its target, as in customers.csv:churn.")
    options = FitOptions(target)
    file = read_table(Path(path))
    if file.skipped_sentence() is not None:
        tell(f"{path}: {file.skipped_sentence()}")
    examples, task = examples_of(file.table, options, tell)
    encoder = TableEncoder.learn(examples.table, column_types(examples.table, options, tell), read_numbers=True)
    x, y = encoder.transform(examples.table, warn=False), examples.y
    if task == "classification":
        x, y = _without_rare(x, y, tell)
    return Table(Path(path).stem, task == "classification", lambda: (x, y))


def _without_rare(x: NDArray[Any], y: NDArray[Any], tell: Tell) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of classes that occur often enough to be split."""
    classes, index, counts = np.unique(y, return_inverse=True, return_counts=True)
    kept = counts[index] >= _FEWEST
    if not kept.all():
        rare = ", ".join(repr(str(name)) for name in classes[counts < _FEWEST])
        tell(f"{int((~kept).sum())} rows of classes with fewer than {_FEWEST} rows are left out: {rare}.")
    return x[kept], y[kept]
