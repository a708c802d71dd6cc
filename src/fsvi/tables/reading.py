"""Tables from CSV and Parquet files: every cell of a CSV file is text or missing until its column has a type.

A row with too many or too few fields is skipped and reported with its line number. If more than a tenth of the rows are
like that, the file is refused.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.machine import format_bytes, free_memory
from fsvi.tables.cells import as_cell, is_number
from fsvi.tables.table import Table, as_table
from fsvi.validation import first_line

CSV_ENDINGS, PARQUET_ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt"), (".parquet",)
_DELIMITERS = ",;\t|"
_GROWTH = {".gz": 60, ".parquet": 20}
"""How many times more memory than disk space a table takes; 12 for text."""
_MOST_SKIPPED = 0.1
_LISTED = 5
_Row = tuple[int, list[Any], list[str]]
"""The line that a row starts on, its cells, and their text as it is."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True)
class Skipped:
    """A row that was left out because it has the wrong number of fields.

    Args:
        line: The line of the file that it starts on.
        last: The line that it ends on; a quotation mark that is never closed makes a row of many lines.
        fields: How many fields it has.
    """

    line: int
    last: int
    fields: int

    def __str__(self) -> str:
        lines = f"line {self.line}" if self.line == self.last else f"lines {self.line} to {self.last}"
        return f"{lines} ({self.fields} fields)"


@dataclass(frozen=True)
class TableFile:
    """What was read from a file.

    Args:
        table: The rows.
        skipped: Rows that were left out.
        num_rows: How many good rows the file has; more than the table's when only a sample was read.
        fields: How many fields a row should have.
        kept: Columns to carry over, as the file has them: Arrow arrays, or lists of text.
    """

    table: Table
    skipped: list[Skipped]
    num_rows: int
    fields: int
    kept: Mapping[str, Any] = field(default_factory=dict)

    def skipped_sentence(self) -> str | None:
        """One sentence about what was left out, or None."""
        if not self.skipped:
            return None
        shown = ", ".join(map(str, self.skipped[:_LISTED]))
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
    if _is_parquet(path):
        return _read_parquet(path, max_rows, seed)
    skipped: list[Skipped] = []
    with _open(path) as file:
        header, rows = _parse(path, file, skipped)
        kept, total = _sample(((line, cells, []) for line, cells, _ in rows), max_rows, seed)
    _check_rows(path, total, skipped)
    return TableFile(_as_strings(header, kept), skipped, total, len(header))


def read_chunks(
    path: Path,
    rows: int,
    columns: Collection[str] | None = None,
    keep: Collection[str] = (),
    can_be_empty: bool = False,
) -> Iterator[TableFile]:
    """Read a file of any size part by part.

    Args:
        path: The file.
        rows: The number of rows per part.
        columns: The columns to read; None for all. Missing ones are left to the caller.
        keep: Columns to carry over as they are; they are not in the table unless `columns` has them, too.
        can_be_empty: Whether a file without rows is all right; there are no parts then.
    """
    _check_file(path)
    if _is_parquet(path):
        yield from _parquet_chunks(path, rows, columns, keep, can_be_empty)
        return
    total, count = 0, 0
    with _open(path) as file:
        skipped: list[Skipped] = []
        header, parsed = _parse(path, file, skipped)
        _check_kept(path, header, keep)
        names = _read_names(header, columns, keep)
        while chunk := list(islice(parsed, rows)):
            total += len(chunk)
            kept = {name: [raw[header.index(name)] for _, _, raw in chunk] for name in keep}
            yield TableFile(_as_strings(header, chunk, names), skipped[count:], total, len(header), kept)
            count = len(skipped)
    _check_rows(path, total, skipped, can_be_empty)
    if len(skipped) > count:
        yield TableFile(_as_strings(header, []), skipped[count:], total, len(header))


def column_names(path: Path) -> list[str]:
    """The names of a file's columns; no row is read.

    Args:
        path: The file.
    """
    _check_file(path)
    if _is_parquet(path):
        return [str(name) for name in parquet_schema(path).names]
    with _open(path) as file:
        return _parse(path, file, [])[0]


def parquet_schema(path: Path) -> Any:
    """The Arrow schema of a Parquet file.

    Args:
        path: The file.
    """
    return _parquet_file(path).schema_arrow


def num_parquet_rows(path: Path) -> int:
    """The number of rows of a Parquet file; none is read.

    Args:
        path: The file.
    """
    return int(_parquet_file(path).metadata.num_rows)


def _parse(path: Path, file: TextIO, skipped: list[Skipped]) -> tuple[list[str], Iterator[_Row]]:
    """The columns' names and the good rows with their line numbers; others are added to `skipped`."""
    lines = _decoded(path, file)
    blank, first = next(((number, line) for number, line in enumerate(lines) if line.strip()), (0, None))
    if first is None:
        raise FileFormatError(f"{path} is empty: a line of column names and at least one row are needed.")
    mark = max(_DELIMITERS, key=first.count)
    current = [first]
    reader = csv.reader(_chain(first, lines, current), delimiter=mark)
    header = _header(path, next(reader))
    return header, _good_rows(path, reader, current, blank, len(header), mark, skipped)


def _check_kept(path: Path, names: Collection[str], keep: Collection[str]) -> None:
    absent = next((name for name in keep if name not in names), None)
    if absent is not None:
        raise InvalidInputError(f"{path} has no column {absent!r} to keep: it has {', '.join(map(repr, names))}.")


def _good_rows(
    path: Path, reader: Any, current: list[str], blank: int, fields: int, mark: str, skipped: list[Skipped]
) -> Iterator[_Row]:
    """Rows with the right number of fields; `current` holds the line that the reader has just read.

    The reader has not counted `blank` empty lines at the top.
    """
    before = reader.line_num + blank
    try:
        for row in reader:
            line, before = before + 1, reader.line_num + blank
            if line < before and '"' not in current[0]:  # the end of the file, not a closing mark, ended the cell
                raise FileFormatError(f"{path} has a quotation mark in line {line} that is never closed: remove it.")
            if len(row) == fields + 1 and not row[-1]:  # a separator at the end of the line
                row = row[:-1]
            if len(row) == fields:
                yield line, [_cell(text, mark) for text in row], row
            elif any(text.strip() for text in row):
                skipped.append(Skipped(line, before, len(row)))
    except csv.Error as error:
        raise FileFormatError(f"{path} cannot be read after line {before}: {first_line(error)}.") from error


def _cell(text: str, mark: str) -> str | None:
    """The cell; files with semicolons between cells often have commas before decimals."""
    if mark == ";" and _DECIMAL_COMMA.fullmatch(text.strip()):
        text = text.replace(",", ".")
    return as_cell(text)


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    while names and not names[-1]:
        names.pop()
    names = [name or f"column {index}" for index, name in enumerate(names, start=1)]
    if all(map(is_number, names)):
        raise FileFormatError(f"{path} starts with numbers: its first line must have the columns' names.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FileFormatError(f"{path} has two columns called {twice!r}: rename one of them.")
    return names


def _sample(rows: Iterable[_Row], most: int | None, seed: int) -> tuple[list[_Row], int]:
    """All rows, or a random sample of them by reservoir sampling in the order of the file, and how many there were."""
    if most is None:
        kept = list(rows)
        return kept, len(kept)
    kept, total, generator = [], 0, random.Random(seed)
    for row in rows:
        total += 1
        if len(kept) < most:
            kept.append(row)
        elif (place := generator.randrange(total)) < most:
            kept[place] = row
    return sorted(kept, key=lambda row: row[0]), total


def _as_strings(header: list[str], rows: list[_Row], names: Collection[str] | None = None) -> Table:
    columns: dict[str, Any] = {}
    for index, name in enumerate(header):
        if names is None or name in names:
            column = np.empty(len(rows), dtype=object)
            column[:] = [cells[index] for _, cells, _ in rows]
            columns[name] = column
    return Table(columns, np.array([line for line, _, _ in rows], dtype=np.int64))


def _read_names(names: Sequence[str], columns: Collection[str] | None, keep: Collection[str]) -> list[str]:
    """The columns of the table: those asked for, or all but those that are only carried over."""
    return [name for name in names if (name not in keep if columns is None else name in columns)]


def _check_rows(path: Path, total: int, skipped: list[Skipped], can_be_empty: bool = False) -> None:
    if not total and not skipped and not can_be_empty:
        raise FileFormatError(f"{path} has column names but no rows.")
    if len(skipped) > _MOST_SKIPPED * (total + len(skipped)):
        raise FileFormatError(
            f"{path} has {len(skipped)} of {total + len(skipped)} rows with the wrong number of fields, first "
            f"{skipped[0]}: is the separator the same in all lines, and every quotation mark closed?"
        )


# Files ----------------------------------------------------------------------------------------------------------------


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


def _open(path: Path) -> TextIO:
    try:
        if path.suffix.lower() == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return open(path, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error


def _decoded(path: Path, file: TextIO) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not text in UTF-8: save it as such.") from error
    except (OSError, EOFError) as error:
        raise FileFormatError(f"{path} cannot be read: {first_line(error)}.") from error


def _chain(first: str, rest: Iterator[str], current: list[str]) -> Iterator[str]:
    """All lines; the one that was given out last is in `current`."""
    yield first
    for line in rest:
        current[0] = line
        yield line


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(PARQUET_ENDINGS)


def _read_parquet(path: Path, max_rows: int | None, seed: int) -> TableFile:
    polars = _polars()
    try:
        frame = polars.scan_parquet(path)
        total = int(frame.select(polars.len()).collect().item())
        lines = np.arange(1, total + 1)
        if max_rows is not None and total > max_rows:
            lines = np.array(sorted(random.Random(seed).sample(range(1, total + 1), max_rows)))
            index = frame.with_row_index("fsvi row", offset=1)
            frame = index.filter(polars.col("fsvi row").is_in(lines)).drop("fsvi row")
        table = _typed(path, frame.collect())
    except polars.exceptions.PolarsError as error:
        raise FileFormatError(f"{path} is not a whole Parquet file: {first_line(error)}.") from error
    _check_rows(path, total, [])
    return TableFile(Table(table.columns, lines), [], total, len(table.names))


def _parquet_chunks(
    path: Path, rows: int, columns: Collection[str] | None, keep: Collection[str], can_be_empty: bool
) -> Iterator[TableFile]:
    polars, arrow = _polars(), pyarrow_module()
    file = _parquet_file(path)
    names = file.schema_arrow.names
    _check_rows(path, file.metadata.num_rows, [], can_be_empty)
    _check_kept(path, names, keep)
    read = _read_names(names, columns, keep)
    start = 0
    try:
        for batch in file.iter_batches(rows, columns=list(dict.fromkeys([*read, *keep]))):
            table = _typed(path, polars.from_arrow(batch.select(read)))
            lines = np.arange(start + 1, start + batch.num_rows + 1)
            start += batch.num_rows
            yield TableFile(
                Table(table.columns, lines), [], start, len(names), {name: batch.column(name) for name in keep}
            )
    except (arrow.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} is not a whole Parquet file: {first_line(error)}.") from error


def _parquet_file(path: Path) -> Any:
    """A Parquet file of which no row is read yet; its column chunks are read as they are needed."""
    arrow = pyarrow_module()
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
    except (arrow.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} is not a whole Parquet file: {first_line(error)}.") from error


def _typed(path: Path, frame: Any) -> Table:
    try:
        return as_table(frame)
    except (TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} has columns that are neither numbers, dates nor text: {first_line(error)}."
        ) from error


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise InvalidInputError("Parquet files need polars: pip install polars, or use .csv.") from error
    return polars


def pyarrow_module() -> Any:
    """The package pyarrow, which fsvi does not need otherwise."""
    try:
        import pyarrow
    except ImportError as error:
        raise InvalidInputError("Parquet files need pyarrow: pip install pyarrow, or use .csv.") from error
    return pyarrow
