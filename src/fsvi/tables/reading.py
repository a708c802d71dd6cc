"""Rows from files, part by part: CSV and Parquet tables by pyarrow, arrays of numbers from .npy and .npz files.

pyarrow, not polars: it streams CSV and reads and writes Parquet in parts with bounded memory, checks that text is UTF-8
where polars panics, and reports damaged files by ordinary errors. A file with a row of the wrong length is refused.

Every cell of a CSV file is text or missing until its column has a type. Lines are counted with the names as line 1;
empty lines and line ends inside quotation marks do not count.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from fsvi.errors import FileFormatError, FSVIError, InvalidInputError
from fsvi.serialization import reason
from fsvi.tables.cells import MISSING, is_number
from fsvi.tables.table import Table, as_column

CSV_ENDINGS, PARQUET_ENDINGS, ARRAY_ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt"), (".parquet",), (".npy", ".npz")
_DELIMITERS = ",;\t|"
_BLOCK = 2**23
"""Bytes of text that are parsed at a time; no row may be longer."""
_LONGEST = 2**20
"""Bytes of the first line."""
_ROWS = 2**14
_MOST_CELLS = 2**28
"""What is read into memory at once: 2 GiB of numbers."""
_DECIMAL_COMMA = r"^\s*[+-]?\d+,\d+\s*$"


def read_table(path: Path) -> Table:
    """All rows of a CSV or Parquet file."""
    tables, cells = list[Table](), 0
    for table, _ in TableReader(path).parts(_ROWS):
        tables.append(table)
        cells += len(table) * len(table.names)
        if cells > _MOST_CELLS:
            raise InvalidInputError(f"{path} has more than {_MOST_CELLS:,} cells: use a sample of its rows.")
    if not len(tables[0]):
        raise FileFormatError(f"{path} has column names but no rows.")
    columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in tables[0].names}
    return Table(columns, np.concatenate([table.lines for table in tables]))


class TableReader:
    """A CSV or Parquet file of any size, and the `names` of its columns."""

    def __init__(self, path: Path) -> None:
        self.path, self._is_text = path, path.name.lower().endswith(CSV_ENDINGS)
        if not self._is_text and not path.name.lower().endswith(PARQUET_ENDINGS):
            known = ", ".join((*CSV_ENDINGS, *PARQUET_ENDINGS))
            raise InvalidInputError(f"{path} ends in {path.suffix!r}: tables are read from {known}.")
        with _reading(path):
            cells = self._first_line() if self._is_text else [str(name) for name in self._parquet().schema_arrow.names]
        self._cells, self.names = cells, [cell.strip() for cell in cells if cell.strip()]
        if self._is_text and all(map(is_number, self.names)):
            raise FileFormatError(f"{path} starts with numbers: its first line must have the columns' names.")
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise FileFormatError(f"{path} has two columns called {twice!r}: rename one of them.")

    def parts(
        self, rows: int, columns: Collection[str] | None = None, keep: Collection[str] = ()
    ) -> Iterator[tuple[Table, dict[str, Any]]]:
        """Tables of at most `rows` consecutive rows, and the columns to `keep` as Arrow arrays, as the file has them.

        Tables have the `columns`, or all but those to keep. A file without rows has one part, without any.
        """
        if (absent := next((name for name in keep if name not in self.names), None)) is not None:
            known = ", ".join(map(repr, self.names))
            raise InvalidInputError(f"{self.path} has no column {absent!r} to keep: it has {known}.")
        read = [name for name in self.names if (name not in keep if columns is None else name in columns)]
        line = 1 + self._is_text
        with _reading(self.path):
            for batch in self._batches(rows, [name for name in self.names if name in read or name in keep]):
                for start in range(0, max(len(batch), 1), rows):
                    part = batch.slice(start, rows)
                    lines = np.arange(line, line + len(part))
                    found = {name: as_column(name, self._cleaned(part[name])) for name in read}
                    yield Table(found, lines), {name: part[name] for name in keep}
                    line += len(part)

    def _batches(self, rows: int, names: list[str]) -> Iterator[Any]:
        """Rows with these columns; the only batch of a file without rows has none."""
        if self._is_text:
            schema = pa.schema([(name, pa.string()) for name in names])
            batches = (batch.select(names) for batch in self._csv())
        else:
            file = self._parquet()
            schema = pa.schema([file.schema_arrow.field(name) for name in names])
            batches = file.iter_batches(rows, columns=names)
        filled = (batch for batch in batches if len(batch))
        yield next(filled, pa.RecordBatch.from_pylist([], schema))
        yield from filled

    def _parquet(self) -> Any:
        return pa.parquet.ParquetFile(pa.OSFile(os.fsencode(self.path)), pre_buffer=False, buffer_size=2**20)

    def _stream(self) -> Any:
        """The bytes of a file, read without Python: Arrow reads ahead in a thread, even while the interpreter ends."""
        file = pa.OSFile(os.fsencode(self.path))
        return pa.CompressedInputStream(file, "gzip") if self.path.suffix.lower() == ".gz" else file

    def _first_line(self) -> list[str]:
        """The cells of the first line that is not empty."""
        with self._stream() as file:
            lines = file.read(_LONGEST).decode("utf-8-sig", errors="ignore").splitlines()
        first = next((line for line in lines if line.strip()), None)
        if first is None:
            raise FileFormatError(f"{self.path} is empty: a line of column names and at least one row are needed.")
        self._mark = max(_DELIMITERS, key=first.count)
        return next(csv.reader([first], delimiter=self._mark))

    def _csv(self) -> Iterator[Any]:
        """All rows, as text."""
        reader = pa.csv.open_csv(
            self._stream(),
            pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            pa.csv.ParseOptions(delimiter=self._mark, newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(self._cells, pa.string())),
        )
        last = ""
        for batch in reader:
            last = batch[-1][-1].as_py() if len(batch) else last
            yield batch.rename_columns([cell.strip() for cell in self._cells])
        if "\n" in last and self._has_open_mark():
            raise FileFormatError(f"{self.path} has a quotation mark that is never closed, near its end: remove it.")

    def _has_open_mark(self) -> bool:
        marks = 0
        with self._stream() as file:
            while block := file.read(_BLOCK):
                marks += block.count(b'"')
        return marks % 2 == 1

    def _cleaned(self, cells: Any) -> Any:
        """Cells of text without spaces around them, null where they mean that there is no value."""
        if not self._is_text:
            return cells
        cells = pc.utf8_trim_whitespace(cells)
        if self._mark == ";":  # files with semicolons between cells often have commas before decimals
            commas = pc.match_substring_regex(cells, _DECIMAL_COMMA)
            cells = pc.if_else(commas, pc.replace_substring(cells, ",", "."), cells)
        return pc.if_else(pc.is_in(pc.utf8_lower(cells), value_set=pa.array(sorted(MISSING))), None, cells)


def read_array(path: Path, name: str = "x") -> NDArray[Any]:
    """The numbers in a .npy file, which stay there until they are used, or the array of this name in a .npz file."""
    with _reading(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(array, np.lib.npyio.NpzFile):
            with array as arrays:
                if name not in arrays:
                    raise FileFormatError(f"{path} has no array {name!r}: it has {', '.join(arrays) or 'none'}.")
                assert arrays.zip is not None
                if arrays.zip.getinfo(f"{name}.npy").file_size > 8 * _MOST_CELLS:
                    raise FileFormatError(f"{path} has an array of more than 2 GiB: save it as .npy.")
                array = arrays[name]
        if array.dtype.kind not in "fiub" or not array.ndim:
            raise FileFormatError(f"{path} has values of type {array.dtype}, not rows of numbers.")
        if not array.size:
            raise FileFormatError(f"{path} has no rows: at least one is needed.")
        return array


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise is one sentence about the file."""
    try:
        if not path.is_file():
            raise FileFormatError(f"{path} cannot be read: there is no such file.")
        yield
    except FSVIError:
        raise
    except Exception as error:  # pyarrow, numpy and zipfile raise nearly every kind of error
        said = reason(error)
        if any(mark in said for mark in ("UTF8", "UTF-8", "utf-8", "Wrapping")):  # the last one is Arrow's for Parquet
            raise FileFormatError(f"{path} is not text in UTF-8: save it as such.") from error
        if "straddl" in said:
            said = "a quotation mark is never closed, or a row is very long"
        raise FileFormatError(f"{path} cannot be read: {said}.") from error
