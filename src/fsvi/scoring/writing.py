"""Files of predictions that are written part by part and appear as a whole or not at all.

Text that a spreadsheet would take for a formula (it starts with =, +, -, @, a tab or a carriage return, and is no
number) gets an apostrophe in front in CSV files. Parquet and JSON files have all text as it is.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fsvi.serialization import replacing
from fsvi.tables.cells import is_number, show_number

OUTPUTS = (".csv", ".csv.gz", ".parquet", ".json")
"""Endings of files of predictions."""
_GROUP = 2**17
"""Rows that are collected before a Parquet file gets them."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class CSVWriter:
    """Text with a line of names; numbers have six digits."""

    def __init__(self, file: BinaryIO, compresses: bool = False) -> None:
        # without a name and a time, the same rows give the same bytes
        self._gzip = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if compresses else None
        self._text = io.TextIOWrapper(self._gzip or file, encoding="utf-8", newline="")
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._is_new = True

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows: arrays or Arrow arrays of one length, by name; the same names in every call."""
        if self._is_new:
            self._writer.writerow(map(_cell, columns))
            self._is_new = False
        self._writer.writerows(zip(*([_cell(v) for v in values.tolist()] for values in columns.values()), strict=True))

    def close(self) -> None:
        """Write what is left; the file itself stays open."""
        self._text.flush()
        self._text.detach()
        if self._gzip is not None:
            self._gzip.close()


class ParquetWriter:
    """Parquet in groups of about a hundred thousand rows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._parts = file, list[Any]()
        self._writer: Any = None

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows; see `CSVWriter.write`."""
        self._parts.append(pa.table({name: _array(values) for name, values in columns.items()}))
        if sum(map(len, self._parts)) >= _GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last group and the footer."""
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if self._parts:
            rows = pa.concat_tables(self._parts)
            self._parts = []
            self._writer = self._writer or pa.parquet.ParquetWriter(self._file, rows.schema, compression="zstd")
            self._writer.write_table(rows, row_group_size=len(rows) or 1)


class JSONWriter:
    """One object: the rows are its `predictions`, one per line, followed by what `summary` has when it is closed."""

    def __init__(self, file: BinaryIO, summary: Mapping[str, Any]) -> None:
        self._file, self._summary, self._mark = file, summary, b"\n"
        file.write(b'{"predictions": [')

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows; see `CSVWriter.write`."""
        for row in zip(*(values.tolist() for values in columns.values()), strict=True):
            cells = {name: _plain(value) for name, value in zip(columns, row, strict=True)}
            self._file.write(self._mark + json.dumps(cells, default=str, allow_nan=False).encode())
            self._mark = b",\n"

    def close(self) -> None:
        """Write the summary."""
        self._file.write(b"\n]" + json.dumps(dict(self._summary)).encode().replace(b"{", b", ", 1) + b"\n")


Writer = CSVWriter | ParquetWriter | JSONWriter


@contextmanager
def new_file(path: Path, summary: Mapping[str, Any], before: Callable[[int], None] | None = None) -> Iterator[Writer]:
    """A writer of a file that gets its name when everything is written.

    `before` is called with the number of bytes when all of them are on the disk; `summary` has further values for a
    .json file.
    """
    with replacing(path) as file:
        name = path.name.lower()
        writer: Writer
        if name.endswith(".parquet"):
            writer = ParquetWriter(file)
        else:
            writer = JSONWriter(file, summary) if name.endswith(".json") else CSVWriter(file, name.endswith("gz"))
        yield writer
        writer.close()
        if before is not None:
            file.flush()
            os.fsync(file.fileno())
            before(file.tell())


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, str) and value.startswith(_FORMULA) and not is_number(value):
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
