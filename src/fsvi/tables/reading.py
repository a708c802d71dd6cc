"""Rows from files, part by part: CSV and Parquet tables by pyarrow, arrays of numbers from .npy and .npz files.

pyarrow, not polars: it streams CSV and reads and writes Parquet in parts with bounded memory, checks that text is UTF-8
where polars panics, and reports damaged files by ordinary errors.

Every cell of a CSV file is text or missing until its column has a type. Lines are counted with the names as line 1;
empty lines and line ends inside quotation marks do not count. A row with too many or too few fields is skipped and
reported. If more than a tenth of the rows are like that, the file is refused.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.machine import format_bytes, free_memory
from fsvi.serialization import reason
from fsvi.tables.cells import MISSING, days, is_number
from fsvi.tables.table import Table

CSV_ENDINGS, PARQUET_ENDINGS, ARRAY_ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt"), (".parquet",), (".npy", ".npz")
_DELIMITERS = ",;\t|"
_GROWTH = {".gz": 60, ".parquet": 20}
"""How many times more memory than disk space a table takes; 12 for text."""
_BLOCK = 2**23
"""Bytes of text that are parsed at a time; no row may be longer."""
_MOST_BYTES = 2**26
"""Bytes of an array that are read at a time."""
_MOST_SKIPPED = 0.1
_MOST_LOST = 10_000
"""Skipped rows after which a file may be refused before its end."""
_LISTED = 5
_DECIMAL_COMMA = r"^\s*[+-]?\d+,\d+\s*$"


@dataclass(frozen=True)
class TableFile:
    """What was read from a file, or from a part of it.

    Args:
        table: The rows.
        skipped: Rows that were left out because they have the wrong number of fields, as "line 4 (2 fields)".
        num_rows: How many good rows were read so far; more than the table's when only a sample was kept.
        fields: How many fields a row should have.
        kept: Columns to carry over as the file has them, as Arrow arrays.
    """

    table: Table
    skipped: list[str]
    num_rows: int
    fields: int
    kept: Mapping[str, Any] = field(default_factory=dict)

    def skipped_sentence(self) -> str | None:
        """One sentence about what was left out, or None."""
        if not self.skipped:
            return None
        shown = ", ".join(self.skipped[:_LISTED])
        more = f" and {len(self.skipped) - _LISTED} more" if len(self.skipped) > _LISTED else ""
        rows = "row that does" if len(self.skipped) == 1 else "rows that do"
        return f"Skipped {len(self.skipped)} {rows} not have {self.fields} fields: {shown}{more}."


def read_table(path: Path, max_rows: int | None = None, seed: int = 0) -> TableFile:
    """Read a CSV or Parquet file.

    Args:
        path: The file; its first line, in a CSV file, has the columns' names.
        max_rows: Read a random sample of at most this many rows, in memory for those only.
        seed: Seed of the sample.
    """
    _check_file(path)
    if max_rows is None:
        _check_size(path)
    chance, skipped = np.random.default_rng(seed), list[str]()
    tables, keys = list[Table](), list[NDArray[Any]]()
    for part in read_chunks(path, 2**14):
        tables.append(part.table)
        keys.append(chance.random(len(part.table)))  # the sample has the rows with the smallest keys
        skipped += part.skipped
        if max_rows is not None and sum(map(len, keys)) > 2 * max_rows + 2**14:
            table, key = _smallest(tables, keys, max_rows)
            tables, keys = [table], [key]
    if not part.num_rows:
        raise FileFormatError(f"{path} has column names but no rows.")
    return TableFile(_smallest(tables, keys, max_rows)[0], skipped, part.num_rows, part.fields)


def _smallest(tables: list[Table], keys: list[NDArray[Any]], most: int | None) -> tuple[Table, NDArray[Any]]:
    """The rows with the smallest keys, in their order."""
    columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in tables[0].names}
    key = np.concatenate(keys)
    kept = np.sort(np.argsort(key)[:most])
    return Table(columns, np.concatenate([table.lines for table in tables])).take(kept), key[kept]


def read_chunks(
    path: Path,
    rows: int,
    columns: Collection[str] | None = None,
    keep: Collection[str] = (),
    numbers: Collection[str] = (),
    needs_names: bool = True,
) -> Iterator[TableFile]:
    """Read a table of any size part by part; the only part of a file without rows has none.

    Args:
        path: The file.
        rows: The largest number of rows per part.
        columns: The columns to read; None for all. Missing ones are left to the caller.
        keep: Columns to carry over as they are; they are not in the table unless `columns` has them, too.
        numbers: Columns of text that hold numbers; those that do not stay text.
        needs_names: Whether a CSV file must have a line of names. If not, all columns are numbers; without such a line,
            they are called "column 1" and so on.
    """
    with _reading(path):
        source = _source(path, needs_names)
        absent = next((name for name in keep if name not in source.names), None)
        if absent is not None:
            known = ", ".join(map(repr, source.names))
            raise InvalidInputError(f"{path} has no column {absent!r} to keep: it has {known}.")
        read = [name for name in source.names if (name not in keep if columns is None else name in columns)]
        numbers = numbers if needs_names else read
        total = told = 0
        for batch in source.batches(rows, list(dict.fromkeys([*read, *keep]))):
            lines = source.lines(total, len(batch))
            total += len(batch)
            table = Table({name: source.column(batch[name], name, name in numbers) for name in read}, lines)
            kept = {name: _plain(batch[name]) for name in keep}
            yield TableFile(table, source.skipped[told:], total, len(source.names), kept)
            told = len(source.skipped)
            if told > _MOST_LOST:
                _check_skipped(path, total, source.skipped)
        _check_skipped(path, total, source.skipped)


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; no row is read."""
    with _reading(path):
        return _source(path, needs_names=True).names


def _source(path: Path, needs_names: bool) -> _Parquet | _Text:
    _check_file(path)
    return _Parquet(path) if path.name.lower().endswith(PARQUET_ENDINGS) else _Text(path, needs_names)


def _stream(path: Path) -> Any:
    """The bytes of a file, read without Python: Arrow reads ahead in a thread, even while the interpreter ends."""
    file = pa.OSFile(os.fsencode(path))
    return pa.CompressedInputStream(file, "gzip") if path.suffix.lower() == ".gz" else file


# CSV ------------------------------------------------------------------------------------------------------------------


class _Text:
    """A CSV file: its names, and its rows as batches of text."""

    def __init__(self, path: Path, needs_names: bool) -> None:
        self.path, self.skipped, self._lost = path, list[str](), list[int]()
        before, first = self._first_line()
        self.mark = max(_DELIMITERS, key=first.count)
        cells = [cell.strip() for cell in next(csv.reader([first], delimiter=self.mark), [])]
        numbered = [f"column {index}" for index in range(1, len(cells) + 1)]
        has_names = needs_names or (not any(map(is_number, cells)) and any(cells))
        self._skip, self._first = before + has_names, 1 + has_names
        self._all = [cell or other for cell, other in zip(cells, numbered, strict=True)] if has_names else numbered
        self.names = list(self._all)
        while has_names and len(self.names) > 1 and not cells[len(self.names) - 1]:
            self.names.pop()  # a separator at the end of the line
        if needs_names and all(map(is_number, self.names)):
            raise FileFormatError(f"{path} starts with numbers: its first line must have the columns' names.")
        twice = next((name for name in self._all if self._all.count(name) > 1), None)
        if twice is not None and needs_names:
            raise FileFormatError(f"{path} has two columns called {twice!r}: rename one of them.")
        if twice is not None:
            self.names = self._all = numbered

    def _first_line(self) -> tuple[int, str]:
        """How many lines before the first that is not empty, and that one."""
        with gzip.open(self.path) if self.path.suffix.lower() == ".gz" else open(self.path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_BLOCK), b"")):
                text = line.removeprefix(codecs.BOM_UTF8).decode().strip("\r\n")
                if text.strip():
                    return number, text
        raise FileFormatError(f"{self.path} is empty: a line of column names and at least one row are needed.")

    def _has_odd_marks(self) -> bool:
        """Whether a quotation mark may be open at the end; a file that is not UTF-8 is refused."""
        decode, marks = codecs.getincrementaldecoder("utf-8")().decode, 0
        with _stream(self.path) as file:
            while block := file.read(_BLOCK):
                decode(block)
                marks += block.count(b'"')
        decode(b"", final=True)
        return marks % 2 == 1

    def batches(self, rows: int, names: list[str]) -> Iterator[Any]:
        """The good rows; one batch without any if there are none."""
        has_odd_marks, good, last = self._has_odd_marks(), 0, None
        try:
            reader = pa.csv.open_csv(
                _stream(self.path),
                pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=self._all, skip_rows=self._skip),
                pa.csv.ParseOptions(delimiter=self.mark, newlines_in_values=True, invalid_row_handler=self._skip_row),
                pa.csv.ConvertOptions(column_types=dict.fromkeys(self._all, pa.string()), include_columns=names),
            )
        except pa.ArrowInvalid as error:
            if "skip initial" not in str(error):  # nothing after the names, not even a line end
                raise
            reader = []
        for block in reader:
            good, last = good + len(block), block if len(block) else last
            for start in range(0, len(block), rows):
                yield block.slice(start, rows)
        end = self._first + good + len(self._lost) - 1
        if self._lost and self._lost[-1] == end:
            is_open = self._is_broken
        else:
            is_open = last is not None and any("\n" in column[-1].as_py() for column in last.columns)
        if has_odd_marks and is_open:
            raise FileFormatError(f"{self.path} has a quotation mark in line {end} that is never closed: remove it.")
        if last is None:
            yield pa.RecordBatch.from_pydict({name: pa.array([], pa.string()) for name in names})

    def _skip_row(self, row: Any) -> str:
        if row.text.strip(f"{self.mark} \r\n"):
            self._is_broken = "\n" in row.text.strip()
            self._lost.append(row.number - self._skip + self._first - 1)
            self.skipped.append(f"line {self._lost[-1]} ({row.actual_columns} fields)")
        return "skip"

    def lines(self, start: int, count: int) -> NDArray[np.int64]:
        """The lines of `count` good rows after `start` of them."""
        rows = np.arange(start, start + count)
        lost = np.array(self._lost, dtype=np.int64) - self._first
        # good rows before each skipped one: that many fit in front of it
        return rows + np.searchsorted(lost - np.arange(len(lost)), rows, "right") + self._first

    def column(self, cells: Any, name: str, is_number_column: bool) -> NDArray[Any]:
        """Text without spaces around it, None where it means that there is no value; or numbers."""
        cells = pc.utf8_trim_whitespace(cells)
        if self.mark == ";":  # files with semicolons between cells often have commas before decimals
            commas = pc.match_substring_regex(cells, _DECIMAL_COMMA)
            cells = pc.if_else(commas, pc.replace_substring(cells, ",", "."), cells)
        cells = pc.if_else(pc.is_in(pc.utf8_lower(cells), value_set=pa.array(sorted(MISSING))), None, cells)
        if is_number_column:
            with suppress(pa.ArrowInvalid):  # currencies, percents, or something else
                return _as_floats(pc.cast(cells, pa.float64()))
        return np.asarray(cells.to_numpy(zero_copy_only=False), dtype=object)


# Parquet --------------------------------------------------------------------------------------------------------------


class _Parquet:
    """A Parquet file; its column chunks are read as they are needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.skipped = path, list[str]()
        self.file = pa.parquet.ParquetFile(_stream(path), pre_buffer=False, buffer_size=2**20)
        self.names = [str(name) for name in self.file.schema_arrow.names]

    def batches(self, rows: int, names: list[str]) -> Iterator[Any]:
        """The rows; one batch without any if there are none."""
        empty = True
        for batch in self.file.iter_batches(rows, columns=names):
            empty = False
            yield batch
        if empty:
            schema = self.file.schema_arrow
            yield pa.RecordBatch.from_pylist([], schema=pa.schema([schema.field(name) for name in names]))

    def lines(self, start: int, count: int) -> NDArray[np.int64]:
        """Rows are counted from 1."""
        return np.arange(start + 1, start + count + 1)

    def column(self, values: Any, name: str, is_number_column: bool) -> NDArray[Any]:
        """A column of numbers, dates or text."""
        values = _plain(values)
        kind = values.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return _as_floats(pc.cast(values, pa.float64(), safe=False))
        if pa.types.is_null(kind):
            return np.full(len(values), np.nan)
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            moments = pc.cast(values, pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
            return np.asarray(moments.to_numpy(zero_copy_only=False), dtype="datetime64[us]")
        if pa.types.is_duration(kind):
            spans = pc.cast(values, pa.duration("us"), safe=False).to_numpy(zero_copy_only=False)
            return days(spans.astype("timedelta64[us]").view("datetime64[us]"))
        if pa.types.is_boolean(kind) or _is_text(kind):
            return np.asarray(pc.cast(values, pa.string()).to_numpy(zero_copy_only=False), dtype=object)
        raise FileFormatError(
            f"{self.path} has a column {name!r} of type {kind}, which is neither numbers, dates nor text: remove it."
        )


def _plain(values: Any) -> Any:
    """An array without a dictionary, as it is written to Parquet and read from it."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _is_text(kind: Any) -> bool:
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    return any(getattr(pa.types, test, lambda _: False)(kind) for test in tests)


def _as_floats(values: Any) -> NDArray[np.float64]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)


# Arrays ---------------------------------------------------------------------------------------------------------------


def read_arrays(path: Path, rows: int, name: str = "x") -> Iterator[NDArray[Any]]:
    """The rows of a .npy file, or of one array of a .npz file, part by part.

    Args:
        path: The file.
        rows: The largest number of rows per part.
        name: The name of the array in a .npz file.
    """
    with _reading(path), ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "rb"))
        size = path.stat().st_size
        if path.name.lower().endswith(".npz"):
            archive = stack.enter_context(zipfile.ZipFile(file))
            if f"{name}.npy" not in archive.namelist():
                names = ", ".join(each.removesuffix(".npy") for each in archive.namelist()) or "none"
                raise FileFormatError(f"{path} has no array {name!r}: it has {names}.")
            size = archive.getinfo(f"{name}.npy").file_size
            file = stack.enter_context(archive.open(f"{name}.npy"))
        yield from _array_rows(path, file, size, rows)


def _array_rows(path: Path, file: Any, size: int, rows: int) -> Iterator[NDArray[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    width = dtype.itemsize * math.prod(shape[1:])
    if dtype.kind not in "fiub" or not shape or min(shape) < 0 or (shape[0] and not width):
        raise FileFormatError(f"{path} has values of type {dtype} and shape {shape}, not rows of numbers.")
    if shape[0] * width > size or width > _MOST_BYTES:
        raise FileFormatError(f"{path} is not a complete numpy file: shape {shape} does not fit its {size} bytes.")
    own = np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")
    step = max(1, min(rows, _MOST_BYTES // max(width, 1)))
    if is_fortran and len(shape) > 1:
        if path.suffix.lower() != ".npy":
            raise FileFormatError(f"{path} is stored column by column: save it again as numpy.ascontiguousarray(x).")
        whole = np.memmap(path, dtype, "r", file.tell(), shape, "F")
        yield from (np.ascontiguousarray(whole[at : at + step], own) for at in range(0, shape[0], step))
        return
    for start in range(0, shape[0], step):
        count = min(step, shape[0] - start)
        content = file.read(count * width)
        if len(content) < count * width:
            raise FileFormatError(f"{path} is not a complete numpy file: it ends after row {start}.")
        yield np.frombuffer(content, dtype).reshape(count, *shape[1:]).astype(own)


# Files ----------------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise is one sentence about the file."""
    try:
        yield
    except (FileFormatError, InvalidInputError):
        raise
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not text in UTF-8: save it as such.") from error
    except Exception as error:  # pyarrow, numpy, zipfile and gzip raise nearly every kind of error
        said = reason(error)
        if any(mark in said for mark in ("UTF8", "UTF-8", "utf-8", "Wrapping")):  # the last one is Arrow's for Parquet
            raise FileFormatError(f"{path} is not text in UTF-8: save it as such.") from error
        if "straddl" in said or "newline" in said:
            said = f"a quotation mark is never closed, or a row is longer than {format_bytes(_BLOCK)}"
        name = path.name.lower()
        kind = "numpy file of numbers" if name.endswith(ARRAY_ENDINGS) else "table"
        kind = "Parquet file" if name.endswith(PARQUET_ENDINGS) else kind
        raise FileFormatError(f"{path} cannot be read as a whole {kind}: {said}.") from error


def _check_skipped(path: Path, total: int, skipped: list[str]) -> None:
    if len(skipped) > _MOST_SKIPPED * (total + len(skipped)):
        raise FileFormatError(
            f"{path} has {len(skipped)} of {total + len(skipped)} rows with the wrong number of fields, first "
            f"{skipped[0]}: is the separator the same in all lines, and every quotation mark closed?"
        )


def _check_file(path: Path) -> None:
    known = (*CSV_ENDINGS, *PARQUET_ENDINGS)
    if not path.name.lower().endswith(known):
        raise InvalidInputError(f"{path} ends in {path.suffix!r}: tables are read from {', '.join(known)}.")
    if not path.is_file():
        raise FileFormatError(f"{path} cannot be read: there is no such file.")


def _check_size(path: Path) -> None:
    """Refuse a file that would not fit into memory, before reading it."""
    free = free_memory()
    needed = path.stat().st_size * _GROWTH.get(path.suffix.lower(), 12)
    if free is not None and needed > free:
        raise InvalidInputError(
            f"{path} has {format_bytes(path.stat().st_size)} and would take about {format_bytes(needed)} of memory, of "
            f"which {format_bytes(free)} are free: read a random sample with --max-rows 100000."
        )
