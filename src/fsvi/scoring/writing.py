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
    arrays = {name: _as_arrow(values) for name, values in columns.items()}
    return pa.table({_harmless(name): _in_csv(values) for name, values in arrays.items()} if is_csv else arrays)


def _as_arrow(values: Any) -> Any:
    """Text of any kind of array has Arrow's type of text, also without any rows."""
    is_text = isinstance(values, np.ndarray) and values.dtype.kind in "OUS"
    return pa.array(values.tolist(), pa.string()) if is_text else pa.array(values)


def _in_csv(values: Any) -> Any:
    if pa.types.is_primitive(values.type):
        return values
    return pa.array([None if cell is None else _harmless(str(cell)) for cell in values.to_pylist()], pa.string())


def _harmless(text: str) -> str:
    return f"'{text}" if text[:1] in _FORMULA and not is_number(text) else text
