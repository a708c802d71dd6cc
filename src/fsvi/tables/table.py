"""A table in memory: named columns of numbers, dates or text."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.errors import InvalidInputError
from fsvi.tables.cells import days

_MISSING_TYPES = ("NAType", "NaTType")
"""How pandas names its missing values, which cannot be compared with anything."""
_FRAMES = ("pandas", "polars")


@dataclass(frozen=True)
class Table:
    """Columns of one length, by name.

    A column is a float64 array (NaN where a value is missing), a datetime64 array (NaT), or an object array of strings
    (None).

    Args:
        columns: The columns.
        lines: For each row, the line of the file that it starts on; rows are counted from 1 where there is no file.
    """

    columns: Mapping[str, NDArray[Any]]
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self.columns)

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return list(self.columns)

    def take(self, index: NDArray[Any] | slice) -> Table:
        """Some of the rows."""
        return Table({name: values[index] for name, values in self.columns.items()}, self.lines[index])

    def without(self, names: Sequence[str]) -> Table:
        """The table without some of its columns."""
        return Table({name: values for name, values in self.columns.items() if name not in names}, self.lines)


def is_mixed(x: Any) -> bool:
    """Whether `x` is a frame of pandas or polars, or an array of objects, with more in it than numbers."""
    if isinstance(x, Table):
        return True
    if _is_frame(x):
        return any(_dtype_kind(x[name].dtype) not in "iuf" for name in x.columns)
    return isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "OUS" and _holds_text(x)


def as_table(x: Any, names: Sequence[str] | None = None) -> Table:
    """A frame or an array (rows, columns) as a table; `names` are those of an array's columns."""
    if isinstance(x, Table):
        return x
    if _is_frame(x):
        columns = {str(name): as_column(_values(x[name])) for name in x.columns}
    else:
        x = np.asarray(x)
        names = [f"x{index}" for index in range(x.shape[1])] if names is None else names
        columns = {str(name): as_column(x[:, index]) for index, name in enumerate(names)}
    return Table(columns, np.arange(1, len(x) + 1))


def as_column(values: NDArray[Any]) -> NDArray[Any]:
    """Any array as one of the three kinds of column; truth values become the strings "true" and "false"."""
    if values.dtype.kind in "iuf":
        return values.astype(np.float64, copy=False)
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]")
    if values.dtype.kind == "m":
        return days(values.astype("timedelta64[us]").view("datetime64[us]"))
    if values.dtype.kind == "b":
        return np.where(values, "true", "false").astype(object)
    return _object_column([None if _is_missing(value) else value for value in values.tolist()])


def _is_missing(value: Any) -> bool:
    """Whether a cell of a frame is None, NaN, or one of pandas's missing values."""
    return value is None or type(value).__name__ in _MISSING_TYPES or (isinstance(value, float) and value != value)


def label(value: Any) -> str:
    """A cell as text, the same whether a file or a frame had it: 1.0 is "1", and True is "true"."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _object_column(cells: list[Any]) -> NDArray[Any]:
    present = [cell for cell in cells if cell is not None]
    if present and all(isinstance(cell, datetime.date) for cell in present):
        in_utc = [_in_utc(cell) if getattr(cell, "tzinfo", None) is not None else cell for cell in cells]
        return np.array(in_utc, dtype="datetime64[us]")
    if not any(isinstance(cell, (str, bool)) for cell in present):
        return np.array([np.nan if cell is None else float(cell) for cell in cells], dtype=np.float64)
    column = np.empty(len(cells), dtype=object)
    column[:] = [None if cell is None else label(cell) for cell in cells]
    return column


def _in_utc(moment: datetime.datetime) -> datetime.datetime:
    """Without a time zone, which numpy cannot keep."""
    return moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)


def _is_frame(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "__getitem__") and type(x).__module__.split(".")[0] in _FRAMES


def _dtype_kind(dtype: Any) -> str:
    """Numpy's letter for a frame's type of column: "i", "u", "f", "b", "M", or "O" for everything else."""
    if hasattr(dtype, "is_numeric"):  # polars
        return "f" if dtype.is_numeric() else "O"
    return getattr(dtype, "kind", "O") if not hasattr(dtype, "categories") else "O"


def _values(series: Any) -> NDArray[Any]:
    """A frame's column as numpy's; a mistake in one of the cells is named."""
    values = series.to_numpy()
    if values.ndim != 1:
        raise InvalidInputError(f"two columns of the frame are called {series.columns[0]!r}: rename one.")
    return np.asarray(values)


def _holds_text(x: NDArray[Any]) -> bool:
    """Whether some string in the array is no number."""
    try:
        x.astype(np.float64)
    except (TypeError, ValueError) as error:  # TypeErrors are about other things than text
        return isinstance(error, ValueError)
    return False
