"""Models that predict files part by part."""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsvi.calibration import Referral
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.scoring.arrays import Sampling, Trained, as_inputs, load_model, table_of
from fsvi.scoring.partitions import ARRAY_ENDINGS
from fsvi.scoring.rows import load_estimator, row_columns, unknown_columns
from fsvi.serialization import ESTIMATOR, file_kind
from fsvi.tables import Table, column_names, num_parquet_rows, read_chunks
from fsvi.tables.reading import PARQUET_ENDINGS, parquet_schema
from fsvi.validation import first_line

ROWS = 8_192
"""Rows that are predicted at a time, all their draws in memory."""
_FIRST = 100
"""Rows of each file that are read before any is scored."""

Columns = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Consecutive predictions.

    Attributes:
        columns: Arrays by name, one row each.
        rows: The number of rows.
        told: Sentences about rows that were skipped or are unlike training.
    """

    columns: Columns
    rows: int
    told: list[str]


@dataclass(frozen=True)
class ModelFile:
    """A model in a file and how it predicts, for processes that load it themselves.

    Attributes:
        path: The file.
        net: `module:function` that makes the network, where the file does not describe it.
        device: Where to predict; None for the CPU.
        samples: The number of draws; None for the model's own.
        seed: The seed of the draws; None for the model's own.
        batch_size: The number of inputs per pass through the network of a method.
    """

    path: Path
    net: str | None = None
    device: str | None = None
    samples: int | None = None
    seed: int | None = None
    batch_size: int = 512

    def load(self) -> Scorer:
        """The model in memory, with its own number of draws and seed where none is given."""
        sampling = Sampling(batch_size=self.batch_size)
        model: Any
        if file_kind(self.path) == ESTIMATOR:
            model = load_estimator(self.path, self.net, self.device)
            # Its own draws: a calibration promises nothing for others.
            sampling = replace(sampling, samples=model.num_samples, seed=model.seed_)
        else:
            model = load_model(self.path, self.net, self.device)
        given = {name: value for name, value in (("samples", self.samples), ("seed", self.seed)) if value is not None}
        kind = TableScorer if file_kind(self.path) == ESTIMATOR else ArrayScorer
        return kind(model, replace(sampling, **given))


class Scorer(ABC):
    """A model that predicts files part by part.

    Args:
        model: The model.
        sampling: How to predict.
    """

    def __init__(self, model: Any, sampling: Sampling) -> None:
        self.model, self.sampling = model, sampling
        self.referral: Referral | None = None
        """which predictions to keep; None adds no column about it"""

    @abstractmethod
    def without_rows(self) -> Columns | None:
        """The columns of no predictions; None if the shape of inputs is not known yet."""

    def check_keep(self, keep: Collection[str]) -> None:
        """Refuse to carry over columns with the name of a prediction.

        Args:
            keep: Columns to carry over.
        """
        taken = next((name for name in keep if name in (self.without_rows() or ())), None)
        if taken is not None:
            raise InvalidInputError(f"the column {taken!r} cannot be kept: predictions have one of that name.")

    @abstractmethod
    def check(self, path: Path, keep: Collection[str]) -> list[str]:
        """Refuse a file that cannot be scored, by its first rows; sentences about columns that are not used."""

    @abstractmethod
    def parts(self, path: Path, keep: Collection[str], rows: int = ROWS) -> Iterator[Part]:
        """Predictions, part by part; the first part of a file without rows has no rows.

        Args:
            path: The file.
            keep: Columns to carry over.
            rows: The number of rows per part.
        """


class TableScorer(Scorer):
    """An estimator, for rows of CSV and Parquet files."""

    def check(self, path: Path, keep: Collection[str]) -> list[str]:
        """Look at the columns' names and the first rows."""
        used = self.model.encoder_.names
        unknown = unknown_columns(self.model, [name for name in column_names(path) if name in used or name not in keep])
        for file in self._chunks(path, keep, _FIRST):
            self.model.encoder_.examine(file.table)
            break
        return [] if unknown is None else [unknown]

    def parts(self, path: Path, keep: Collection[str], rows: int = ROWS) -> Iterator[Part]:
        """Predictions of rows; `line` says where in the file they are."""
        unknown_columns(self.model, column_names(path))
        is_empty = True
        for file in self._chunks(path, keep, rows):
            told = [sentence] if (sentence := file.skipped_sentence()) is not None else []
            if not len(file.table):
                yield Part({}, 0, told)
                continue
            encoded, surprises = self.model.encoder_.examine(file.table)
            columns = self._columns(self.model._standardized(encoded))
            yield Part({**file.kept, "line": file.table.lines, **columns}, len(file.table), told + surprises)
            is_empty = False
        if is_empty:
            yield Part({**_kept_of(path, keep), **self.without_rows()}, 0, [])

    def without_rows(self) -> Columns:
        """The columns of no predictions."""
        columns = self._columns(torch.zeros(1, len(self.model.encoder_.outputs), dtype=torch.float64))
        return _first_rows({"line": np.zeros(1, dtype=np.int64), **columns}, 0)

    def _chunks(self, path: Path, keep: Collection[str], rows: int) -> Iterator[Any]:
        return read_chunks(path, rows, self.model.encoder_.names, keep, can_be_empty=True)

    def _columns(self, inputs: Any) -> Columns:
        return row_columns(self.model, inputs, self.sampling, self.referral)


class ArrayScorer(Scorer):
    """A method, for inputs in .npy and .npz files (the array x), and for columns of numbers."""

    model: Trained

    def check(self, path: Path, keep: Collection[str]) -> list[str]:
        """Look at the first inputs."""
        for x, _ in self._chunks(path, keep, _FIRST):
            as_inputs(self.model, x, path)
            break
        return []

    def parts(self, path: Path, keep: Collection[str], rows: int = ROWS) -> Iterator[Part]:
        """Predictions of inputs; `row` counts them from 1."""
        start = 0
        for x, kept in self._chunks(path, keep, rows):
            columns = self._columns(as_inputs(self.model, x, path, start + 1))
            row = np.arange(start + 1, start + len(x) + 1)
            start += len(x)
            yield Part({**kept, "row": row, **columns}, len(x), [])
        if start == 0:
            empty = self.without_rows()
            if empty is None:
                raise InvalidInputError(f"{path} has no rows: remove it.")
            kept = {} if path.name.endswith(ARRAY_ENDINGS) else _kept_of(path, keep)
            yield Part({**kept, **empty}, 0, [])

    def without_rows(self) -> Columns | None:
        """The columns of no predictions."""
        shape = self.model.input_shape
        if not isinstance(shape, tuple) or any(not isinstance(size, int) for size in shape):
            return None
        columns = self._columns(torch.zeros(1, *shape, dtype=self.model.dtype))
        return _first_rows({"row": np.zeros(1, dtype=np.int64), **columns}, 0)

    def _columns(self, inputs: Any) -> Columns:
        p = self.model.predict(inputs, self.sampling.samples, self.sampling.seed, self.sampling.batch_size)
        if len(p) != len(inputs):
            raise InvalidInputError("a model with outputs at every position cannot score files part by part.")
        return table_of(p, self.referral)

    def _chunks(self, path: Path, keep: Collection[str], rows: int) -> Iterator[tuple[NDArray[Any], Columns]]:
        if path.name.lower().endswith(ARRAY_ENDINGS):
            if keep:
                raise InvalidInputError(f"{path} has no columns with names: leave --keep out.")
            yield from ((x, {}) for x in read_arrays(path, rows))
            return
        for file in read_chunks(path, rows, keep=keep, can_be_empty=True):
            if file.skipped:
                raise FileFormatError(f"{path} has rows of the wrong length: {file.skipped_sentence()}")
            yield _numbers(path, file.table), dict(file.kept)


def read_arrays(path: Path, rows: int) -> Iterator[NDArray[Any]]:
    """The rows of a .npy file, or of the array x of a .npz file, part by part.

    Args:
        path: The file.
        rows: The number of rows per part.
    """
    try:
        with ExitStack() as stack:
            file: Any = stack.enter_context(open(path, "rb"))
            if path.name.lower().endswith(".npz"):
                archive = stack.enter_context(zipfile.ZipFile(file))
                if "x.npy" not in archive.namelist():
                    names = ", ".join(name.removesuffix(".npy") for name in archive.namelist()) or "none"
                    raise FileFormatError(f"{path} has no array 'x': it has {names}.")
                file = stack.enter_context(archive.open("x.npy"))
            yield from _array_rows(path, file, rows)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        if isinstance(error, (FileFormatError, InvalidInputError)):
            raise
        raise FileFormatError(f"{path} is not a complete numpy file of numbers: {first_line(error)}.") from error


def num_rows(path: Path) -> int | None:
    """The number of rows, if the file says it without being read.

    Args:
        path: The file.
    """
    return num_parquet_rows(path) if path.name.lower().endswith(PARQUET_ENDINGS) else None


def _array_rows(path: Path, file: Any, rows: int) -> Iterator[NDArray[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.kind not in "fiub" or not shape:
        raise FileFormatError(f"{path} has values of type {dtype} and shape {shape}, not rows of numbers.")
    if is_fortran and len(shape) > 1:
        raise FileFormatError(f"{path} is stored column by column: save it again as numpy.ascontiguousarray(x).")
    width = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    for start in range(0, shape[0], rows):
        count = min(rows, shape[0] - start)
        content = file.read(count * width)
        if len(content) < count * width:
            raise FileFormatError(f"{path} is not a complete numpy file: it ends after row {start}.")
        x = np.frombuffer(content, dtype).reshape(count, *shape[1:])
        yield x.astype(np.float64 if dtype.itemsize > 8 else dtype.newbyteorder("="))


def _numbers(path: Path, table: Table) -> NDArray[np.float64]:
    """The columns of a table as one array; text must be numbers."""
    columns = []
    for name, values in table.columns.items():
        if values.dtype.kind == "M":
            raise FileFormatError(f"{path} is not a table of numbers: column {name!r} has dates.")
        try:
            columns.append(values.astype(np.float64))
        except (TypeError, ValueError) as error:
            line = next(line for line, cell in zip(table.lines, values, strict=True) if not _is_number(cell))
            raise FileFormatError(f"{path} is not a table of numbers: see column {name!r} in line {line}.") from error
    return np.column_stack(columns)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _kept_of(path: Path, keep: Collection[str]) -> Columns:
    """The columns to carry over of a file without rows."""
    if path.name.lower().endswith(PARQUET_ENDINGS):
        schema = parquet_schema(path)
        return {name: schema.empty_table().column(name).combine_chunks() for name in keep}
    return {name: [] for name in keep}


def _first_rows(columns: Columns, num: int) -> Columns:
    return {name: values[:num] for name, values in columns.items()}
