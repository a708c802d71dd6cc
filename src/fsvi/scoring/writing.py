"""Files of predictions that are written part by part and appear as a whole or not at all.

Text that a spreadsheet would take for a formula (it starts with =, +, -, @, a tab or a carriage return, and is no
number) gets an apostrophe in front in CSV files. Parquet and JSON files have all text as it is.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fsvi.serialization import replacing
from fsvi.tables.cells import is_number, show_number

_FORMULA = frozenset("=+-@\t\r")
Write = Callable[[Mapping[str, Any]], None]
"""A function that appends rows: arrays or Arrow arrays of one length, by name; the same names in every call."""


@contextmanager
def _csv(file: BinaryIO, summary: Mapping[str, Any]) -> Iterator[Write]:
    """Text with a line of names; numbers have six digits."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer, is_new = csv.writer(text, lineterminator="\n"), True

    def write(columns: Mapping[str, Any]) -> None:
        nonlocal is_new
        if is_new:
            writer.writerow(map(_cell, columns))
        is_new = False
        writer.writerows(zip(*(map(_cell, values.tolist()) for values in columns.values()), strict=True))

    try:
        yield write
    finally:
        text.detach()  # which flushes it, and leaves the file open


@contextmanager
def _parquet(file: BinaryIO, summary: Mapping[str, Any]) -> Iterator[Write]:
    writer: Any = None

    def write(columns: Mapping[str, Any]) -> None:
        nonlocal writer
        rows = pa.table({name: _array(values) for name, values in columns.items()})
        writer = writer or pa.parquet.ParquetWriter(file, rows.schema, compression="zstd")
        writer.write_table(rows)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _json(file: BinaryIO, summary: Mapping[str, Any]) -> Iterator[Write]:
    """One object: the rows are its `predictions`, one per line, followed by the summary."""
    file.write(b'{"predictions": [')
    mark = b"\n"

    def write(columns: Mapping[str, Any]) -> None:
        nonlocal mark
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            cells = {name: _plain(value) for name, value in zip(columns, row, strict=True)}
            file.write(mark + json.dumps(cells, default=str, allow_nan=False).encode())
            mark = b",\n"

    yield write
    file.write(b"\n]" + json.dumps(dict(summary)).encode().replace(b"{", b", ", 1) + b"\n")


WRITERS = {".csv": _csv, ".parquet": _parquet, ".json": _json}
"""By the endings of files of predictions."""


@contextmanager
def new_file(path: Path, summary: Mapping[str, Any]) -> Iterator[Write]:
    """A function that writes rows to a file, which gets its name when everything is written.

    Args:
        path: The file.
        summary: Further values for a .json file, as they are at the end.
    """
    with replacing(path) as file, WRITERS[path.suffix.lower()](file, summary) as write:
        yield write


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, str) and value[:1] in _FORMULA and not is_number(value):
        return f"'{value}"
    return value


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _array(values: Any) -> Any:
    """Text of any kind of array has Arrow's type of text, also without any rows."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "OUS":
        return pa.array(values.tolist(), pa.string())
    return values if isinstance(values, pa.Array) else pa.array(values)
