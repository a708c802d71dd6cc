"""Files of predictions that are written part by part and appear as a whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fsvi.errors import InvalidInputError
from fsvi.tables.reading import pyarrow_module

_GROUP = 2**17
"""Rows that are collected before a Parquet file gets them."""


class Writer(ABC):
    """Appends rows to an open file."""

    @abstractmethod
    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows: arrays, Arrow arrays or lists of one length, by name; the same names in every call."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left; the file itself stays open."""


class CSVWriter(Writer):
    """Text with a line of names; numbers have six digits.

    Args:
        file: The file.
        compresses: Whether to compress it by gzip.
    """

    def __init__(self, file: BinaryIO, compresses: bool) -> None:
        # without a name and a time, the same rows give the same bytes
        self._bytes: Any = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if compresses else file
        self._text = io.TextIOWrapper(self._bytes, encoding="utf-8", newline="")
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._is_new = True

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows."""
        if self._is_new:
            self._writer.writerow(columns)
            self._is_new = False
        self._writer.writerows(csv_rows(columns))

    def close(self) -> None:
        """Write the rest."""
        self._text.flush()
        compressed = self._text.detach()
        if isinstance(compressed, gzip.GzipFile):
            compressed.close()


class ParquetWriter(Writer):
    """Parquet in groups of about a hundred thousand rows.

    Args:
        file: The file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._arrow, self._file = pyarrow_module(), file
        self._writer: Any = None
        self._parts: list[Any] = []

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows."""
        self._parts.append(self._arrow.table({name: self._array(values) for name, values in columns.items()}))
        if sum(map(len, self._parts)) >= _GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last group and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow.parquet

        if not self._parts:
            return
        rows = self._arrow.concat_tables(self._parts)
        self._parts = []
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._file, rows.schema, compression="zstd")
        self._writer.write_table(rows, row_group_size=len(rows) or 1)

    def _array(self, values: Any) -> Any:
        """Text of any kind of array has Arrow's type of text, also without any rows."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "OUS":
            return self._arrow.array(values.tolist(), self._arrow.string())
        return values if isinstance(values, self._arrow.Array) else self._arrow.array(values)


@contextmanager
def new_file(path: Path, before: Callable[[int], None]) -> Iterator[Writer]:
    """A writer of a file that gets its name when everything is written, and is durable then.

    After an error or a kill there is no such file. A kill leaves a hidden temporary one, which
    `fsvi.serialization.remove_leftovers` removes.

    Args:
        path: The file: .parquet, .csv or .csv.gz.
        before: Called with the number of bytes when all of them are on the disk, before the file gets its name.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(temporary, "xb"))
            writer = _writer(path, file)
            yield writer
            writer.close()
            file.flush()
            os.fsync(file.fileno())
            before(file.tell())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def csv_rows(columns: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The cells of each row; real numbers have six digits.

    Args:
        columns: Arrays or lists of one length, by name.
    """
    lists = (values if isinstance(values, list) else values.tolist() for values in columns.values())
    return zip(*([_digits(value) for value in values] for values in lists), strict=True)


def _digits(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _writer(path: Path, file: BinaryIO) -> Writer:
    return ParquetWriter(file) if path.name.endswith(".parquet") else CSVWriter(file, path.name.endswith(".gz"))


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a power failure; some file systems cannot, and need not."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
