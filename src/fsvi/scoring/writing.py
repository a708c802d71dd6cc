"""Files of predictions that are written part by part and appear as a whole or not at all.

Text that a spreadsheet would take for a formula (it starts with =, +, -, @, a tab or a carriage return, and is no
number) gets an apostrophe in front in CSV files. Parquet files have all text as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fsvi.serialization import replacing
from fsvi.tables.cells import is_number

WRITERS = {".csv": pa.csv.CSVWriter, ".parquet": partial(pa.parquet.ParquetWriter, compression="zstd")}
"""By the endings of files of predictions."""
_FORMULA = frozenset("=+-@\t\r")
_IN_CSV = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal)
"""Arrow's types that are not text in CSV files."""


def write_parts(path: Path, parts: Iterable[Mapping[str, Any]]) -> None:
    """Write a file that gets its name when it is complete; a part has numpy or Arrow arrays by name."""
    ending = path.suffix.lower()
    tables = (_as_table(columns, ending == ".csv") for columns in parts)
    with replacing(path) as file:
        first = next(tables)
        with WRITERS[ending](file, first.schema) as writer:
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
