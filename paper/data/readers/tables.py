"""Tables of numbers for regression: the UCI datasets, prepared or as published."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fsvi.errors import FileFormatError
from fsvi.validation import first_line
from paper.data.dataset import Arrays
from paper.data.readers.archives import read_content


def read_table(paths: Sequence[Path], delimiter: str | None = ",", header: bool = True, target: int = -1) -> Arrays:
    """Features (n, d) and targets (n,) of a text file, gzip or plain.

    Args:
        paths: The file.
        delimiter: Between columns; None is white space.
        header: Whether the first line has column names.
        target: The index of the target's column.
    """
    content = io.StringIO(read_content(paths[0]).decode("utf-8", "replace"))
    try:
        table = np.loadtxt(content, delimiter=delimiter, skiprows=int(header), ndmin=2)
    except ValueError as error:
        raise FileFormatError(f"{paths[0]} is not a table of numbers: {first_line(error)}.") from error
    if table.shape[1] < 2 or not np.isfinite(table).all():
        raise FileFormatError(f"{paths[0]} needs at least two columns and finite values in all of them.")
    return np.delete(table, target, axis=1), table[:, target]
