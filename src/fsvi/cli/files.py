"""Files for `fsvi predict`: arrays and tables of inputs, and tables of predictions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.scoring.arrays import as_whole
from fsvi.scoring.writing import csv_rows
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import check_choice, first_line

Columns = Mapping[str, np.ndarray]
"""A table: arrays of one length, by name."""


def read_inputs(path: Path) -> np.ndarray:
    """The inputs in a .npy, .npz (the array x), .csv or .parquet file, (n, ...)."""
    if path.suffix.lower() not in _READERS:
        raise InvalidInputError(f"{path} ends in {path.suffix!r}: inputs are read from {_listed(_READERS)}.")
    return _numbers(path, _READERS[path.suffix.lower()](path))


def read_examples(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and their labels: the arrays x and y of a .npz file."""
    x, y = _arrays(path, "x", "y")
    return _numbers(path, x), as_whole(_numbers(path, y))


def is_folder(path: Path) -> bool:
    """Whether predictions go to a folder: an existing one, or a path without an ending."""
    return path.is_dir() or not path.suffix


def check_one(inputs: Sequence[str], keep: Sequence[str] | None) -> None:
    """Check that there is one input, where the predictions go to one file or to the terminal.

    Args:
        inputs: What the user gave.
        keep: Columns to carry over.
    """
    path = Path(inputs[0])
    if keep or len(inputs) > 1 or path.is_dir() or ("*" in path.name and not path.exists()):
        what = "--keep" if keep else "more than one file"
        raise InvalidInputError(f"{what} needs a folder for the predictions: pass --out scored/.")


def check_table(path: Path) -> None:
    """Check that `write_table` can write to `path`, before the predictions are made."""
    if check_choice("the ending of the output", path.suffix.lower(), (".csv", ".parquet", ".json")) == ".parquet":
        _polars()
    check_writable(path.parent)


def write_table(path: Path, columns: Columns, document: Mapping[str, Any]) -> None:
    """Replace the file atomically.

    Args:
        path: A .csv, .parquet or .json file.
        columns: The table.
        document: Further values for a .json file.
    """
    if path.suffix.lower() == ".parquet":
        write_bytes(path, _parquet(columns))
    else:
        text = as_json(columns, document) if path.suffix.lower() == ".json" else as_csv(columns)
        write_bytes(path, text.encode())


def as_csv(columns: Columns) -> str:
    """The table as CSV with a header line; numbers have six digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(csv_rows(columns))
    return text.getvalue()


def as_json(columns: Columns, document: Mapping[str, Any]) -> str:
    """`document` with the rows of the table as its `predictions`, one row per line.

    Args:
        columns: The table.
        document: Further values.
    """
    cells = zip(*(column.tolist() for column in columns.values()), strict=True)
    rows = [json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) for row in cells]
    head = json.dumps(dict(document), allow_nan=False)[:-1]
    return f'{head}, "predictions": [\n' + ",\n".join(rows) + "\n]}\n"


# Reading --------------------------------------------------------------------------------------------------------------


def _numbers(path: Path, inputs: np.ndarray) -> np.ndarray:
    if inputs.dtype.kind not in "fiub":
        raise FileFormatError(f"{path} has values of type {inputs.dtype}, not numbers.")
    if inputs.size == 0 or inputs.ndim == 0:
        raise FileFormatError(f"{path} has inputs of shape {inputs.shape}: at least one is needed.")
    return _for_torch(inputs)


def _for_torch(values: np.ndarray) -> np.ndarray:
    """Numbers in this machine's byte order, of no more than eight bytes each."""
    dtype = np.dtype(np.float64) if values.dtype.itemsize > 8 else values.dtype.newbyteorder("=")
    return values.astype(dtype, copy=False)


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    loaded = _numpy(path, *names)
    if isinstance(loaded, np.ndarray):
        raise FileFormatError(f"{path} has one array without a name: use numpy.savez and the names {_listed(names)}.")
    return loaded


def _numpy(path: Path, *names: str) -> np.ndarray | list[np.ndarray]:
    """The array of a .npy file, or the arrays called `names` of a .npz file."""
    content = io.BytesIO(_bytes(path))
    try:
        loaded = np.load(content, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else [_member(path, loaded, name) for name in names]
    except FileFormatError:
        raise
    except MemoryError as error:
        raise FileFormatError(f"{path} declares more numbers than fit into memory.") from error
    except Exception as error:  # numpy and zipfile raise many kinds of errors for a damaged file
        raise FileFormatError(f"{path} is not a complete numpy file of numbers.") from error


def _member(path: Path, archive: Any, name: str) -> np.ndarray:
    if name not in archive.files:
        raise FileFormatError(f"{path} has no array {name!r}: it has {_listed(archive.files)}.")
    return np.asarray(archive[name])


def _read_npy(path: Path) -> np.ndarray:
    loaded = _numpy(path, "x")
    return loaded if isinstance(loaded, np.ndarray) else loaded[0]


def _read_csv(path: Path) -> np.ndarray:
    """Numbers separated by commas, semicolons or tabs. A first line without any number has the columns' names."""
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), start=1) if line.strip()]
    first = lines[0][1] if lines else ""
    mark = max(",;\t", key=first.count)
    names = next(csv.reader([first], delimiter=mark), [])
    rows = lines[1:] if _is_header(names) else lines
    if not rows:
        raise FileFormatError(f"{path} is empty: at least one input is needed.")
    try:
        return np.loadtxt([line for _, line in rows], delimiter=mark, quotechar='"', comments=None, ndmin=2)
    except ValueError as error:
        headings = list(map(repr, names)) if rows is not lines else [str(i + 1) for i in range(len(names))]
        raise FileFormatError(f"{path} is not a table of numbers: {_fault(rows, mark, headings)}.") from error


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not text in UTF-8: save it as such.") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error


def _is_header(cells: list[str]) -> bool:
    """Whether a first line has names: no cell is a number, and at least one is not empty."""
    return not any(map(_is_number, cells)) and any(cell.strip() for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _fault(rows: list[tuple[int, str]], mark: str, headings: list[str]) -> str:
    """The first place where a table has something other than numbers."""
    for number, line in rows:
        cells = next(csv.reader([line], delimiter=mark))
        if len(cells) != len(headings):
            return f"line {number} has {len(cells)} columns, the first has {len(headings)}"
        for heading, cell in zip(headings, cells, strict=True):
            if not _is_number(cell):
                return f"line {number} has {repr(cell) if cell.strip() else 'nothing'} in column {heading}"
    return "numpy cannot read it"


def _read_parquet(path: Path) -> np.ndarray:
    polars, content = _polars(), _bytes(path)
    try:
        frame = polars.read_parquet(content)
    except polars.exceptions.PolarsError as error:
        raise FileFormatError(f"{path} is not a complete Parquet file: {first_line(error)}.") from error
    odd = [name for name, dtype in frame.schema.items() if not (dtype.is_numeric() or dtype == polars.Boolean)]
    if odd:
        raise FileFormatError(f"{path} is not a table of numbers: column {odd[0]!r} is of type {frame.schema[odd[0]]}.")
    return np.asarray(frame.cast(polars.Float64).to_numpy())


def _parquet(columns: Columns) -> bytes:
    file = io.BytesIO()
    _polars().DataFrame(dict(columns)).write_parquet(file)
    return file.getvalue()


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise InvalidInputError("Parquet files need polars: pip install polars, or use .csv.") from error
    return polars


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


_READERS: dict[str, Callable[[Path], np.ndarray]] = {
    ".npy": _read_npy,
    ".npz": _read_npy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
