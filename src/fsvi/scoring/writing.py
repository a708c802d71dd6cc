"""Files of predictions that are written part by part and appear as a whole or not at all.

Text that a spreadsheet would take for a formula (it starts with =, +, -, @, a tab or a carriage return, and is no
number) gets an apostrophe in front in CSV files. Parquet and JSON files have all text as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fsvi.serialization import replacing
from fsvi.tables.cells import is_number

_FORMULA = frozenset("=+-@\t\r")
_IN_CSV = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal)
"""Arrow's types that are not text in CSV files."""


class _JSONWriter:
    """One object: the rows are its `predictions`, one per line."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self._file, self._mark = file, b"\n"
        file.write(b'{"predictions": [')

    def write_table(self, rows: Any) -> None:
        """Append rows; JSON has no NaN."""
        for row in rows.to_pylist():
            cells = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
            self._file.write(self._mark + json.dumps(cells, default=str).encode())
            self._mark = b",\n"

    def close(self) -> None:
        """Write the end."""
        self._file.write(b"\n]}\n")


WRITERS = {
    ".csv": pa.csv.CSVWriter,
    ".parquet": partial(pa.parquet.ParquetWriter, compression="zstd"),
    ".json": _JSONWriter,
}
"""By the endings of files of predictions."""


def write_parts(path: Path, parts: Iterable[Mapping[str, Any]]) -> None:
    """Write a file that gets its name when it is complete; a part has numpy or Arrow arrays by name."""
    ending = path.suffix.lower()
    tables = (_as_table(columns, ending == ".csv") for columns in parts)
    with replacing(path) as file:
        first = next(tables)
        with closing(WRITERS[ending](file, first.schema)) as writer:
            for rows in chain([first], tables):
                writer.write_table(rows)


def _as_table(columns: Mapping[str, Any], is_csv: bool) -> Any:
    table = pa.table({name: _as_arrow(values) for name, values in columns.items()})
    if not is_csv:
        return table
    return pa.table({_harmless(name): _in_csv(table[name]) for name in table.column_names})


def _as_arrow(values: Any) -> Any:
    """Text of any kind of array has Arrow's type of text, also without any rows."""
    is_text = isinstance(values, np.ndarray) and values.dtype.kind in "OUS"
    return pa.array(values.tolist(), pa.string()) if is_text else values


def _in_csv(values: Any) -> Any:
    if any(test(values.type) for test in _IN_CSV):
        return values
    return pa.array([None if cell is None else _harmless(str(cell)) for cell in values.to_pylist()], pa.string())


def _harmless(text: str) -> str:
    return f"'{text}" if text[:1] in _FORMULA and not is_number(text) else text
