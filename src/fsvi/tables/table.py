"""A table in memory: named columns of numbers, dates or text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fsvi.errors import InvalidInputError

_FRAMES = ("pandas", "polars")
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_TEXT = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "bool")
"""Names of Arrow's types."""


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
        """Rows and columns, which scikit-learn's checks ask for."""
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
    lines = np.arange(1, len(x) + 1)
    if not _is_frame(x):
        x = np.asarray(x)
        names = [f"x{index}" for index in range(x.shape[1])] if names is None else names
        columns = {str(name): x[:, at] for at, name in enumerate(names)}
        if x.dtype.kind in "iuf":
            return Table({name: np.asarray(values, np.float64) for name, values in columns.items()}, lines)
    else:
        if len(set(x.columns)) < len(x.columns):
            raise InvalidInputError("two columns of the frame have the same name: rename one.")
        columns = {str(name): x[name] for name in x.columns}
    return Table({name: _from_series(name, values) for name, values in columns.items()}, lines)


def _from_series(name: str, values: Any) -> NDArray[Any]:
    """A column of a frame or an array."""
    if hasattr(values.dtype, "tz"):
        values = values.dt.tz_convert(None)  # to UTC; pandas warns when Arrow asks it for these
    try:
        arrow = values.to_arrow() if hasattr(values, "to_arrow") else pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # such as numbers among text
        cells = np.asarray(values, dtype=object).tolist()
        arrow = pa.array([None if value is None or value != value else label(value) for value in cells], pa.string())
    return as_column(name, arrow)


def as_column(name: str, values: Any) -> NDArray[Any]:
    """An Arrow array as one of the three kinds of column; truth values become the strings "true" and "false"."""
    kind = values.type
    if pa.types.is_dictionary(kind):  # pandas' categories are text, also where they are numbers
        kind, values = pa.string(), pc.cast(pc.cast(values, kind.value_type), pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        moments = pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        return np.asarray(moments.to_numpy(zero_copy_only=False), dtype="datetime64[us]")
    if pa.types.is_null(kind) or any(test(kind) for test in _NUMBERS):
        numbers = pc.cast(values, pa.float64(), safe=False)
        return np.array(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)
    if str(kind) in _TEXT:
        return np.asarray(pc.cast(values, pa.string()).to_numpy(zero_copy_only=False), dtype=object)
    raise InvalidInputError(
        f"column {name!r} has the type {kind}, which is neither numbers, dates nor text: remove it."
    )


def label(value: Any) -> str:
    """A cell as text, the same whether a file or a frame had it: 1.0 is "1", and True is "true"."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _is_frame(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "__getitem__") and type(x).__module__.split(".")[0] in _FRAMES


def _dtype_kind(dtype: Any) -> str:
    """Numpy's letter for a frame's type of column: "i", "u", "f", "b", "M", or "O" for everything else."""
    if hasattr(dtype, "is_numeric"):  # polars
        return "f" if dtype.is_numeric() else "O"
    return getattr(dtype, "kind", "O") if not hasattr(dtype, "categories") else "O"


def _holds_text(x: NDArray[Any]) -> bool:
    """Whether some string in the array is no number."""
    try:
        x.astype(np.float64)
    except (TypeError, ValueError) as error:  # TypeErrors are about other things than text
        return isinstance(error, ValueError)
    return False
