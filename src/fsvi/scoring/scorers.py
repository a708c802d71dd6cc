"""Models that predict the rows of files, part by part: estimators for tables, methods for arrays."""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fsvi.calibration import Calibrated, Referral
from fsvi.diagnosis.drift import Seen
from fsvi.errors import FileFormatError, FSVIError, InvalidInputError
from fsvi.estimators.base import Estimator
from fsvi.likelihoods import Predictive, concatenate
from fsvi.methods import Method, load
from fsvi.networks.devices import find_device
from fsvi.serialization import ESTIMATOR, building_from, file_kind
from fsvi.tables import NumberColumn, column_names, read_chunks, read_table
from fsvi.tables.columns import as_numbers, missing
from fsvi.tables.reading import ARRAY_ENDINGS, read_arrays
from fsvi.tables.table import label
from fsvi.validation import first_line

ROWS = 8_192
"""Rows that are predicted at a time, all their draws in memory; fewer if the draws would be many numbers."""
_MOST_NUMBERS = 2**25
_MOST_CLASSES = 1_000
"""With more classes, only the most probable one has a column."""
_MOST_TOLD = 20
_ALPHA = 0.05
_EXACT = 2**53
"""Below this, float64 represents every whole number exactly."""
Columns = dict[str, Any]


@dataclass(frozen=True)
class ScoredRows:
    """Consecutive predictions by column, and sentences about rows that were skipped or are unlike training."""

    columns: Columns
    rows: int
    told: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ModelFile:
    """A model in a file and how it predicts, for processes that load it themselves; see `predict_files`."""

    path: Path
    net: str | None = None
    device: str | None = None
    samples: int | None = None
    seed: int | None = None
    batch_size: int = 512

    def load(self) -> Scorer:
        """The model in memory, with its own number of draws and seed where none is given."""
        net = None if self.net is None else make_net(self.net)
        is_table = file_kind(self.path) == ESTIMATOR
        model: Any = Estimator.load(self.path, net) if is_table else load(self.path, net)
        # A calibration promises nothing for other draws than its own.
        samples, seed = (model.num_samples, model.seed_) if is_table else (100, 0)
        samples, seed = self.samples or samples, seed if self.seed is None else self.seed
        scorer: Scorer = (TableScorer if is_table else ArrayScorer)(model, samples, seed, self.batch_size)
        if self.device is not None:
            (model.method_ if is_table else scorer.uncalibrated).to(find_device(self.device))
        if is_table:
            with building_from(self.path):  # forged values show when they are used
                scorer.without_rows()
        return scorer


class Scorer(ABC):
    """A model that predicts files part by part."""

    referral: Referral | None = None
    """which predictions to keep; None adds no column about it"""

    def __init__(self, model: Any, samples: int, seed: int, batch_size: int) -> None:
        self.model, self.samples, self.seed, self.batch_size = model, samples, seed, batch_size

    @property
    def uncalibrated(self) -> Any:
        """The estimator, or the method without its calibration."""
        return self.model.method if isinstance(self.model, Calibrated) else self.model

    @abstractmethod
    def without_rows(self) -> Columns:
        """The columns of no predictions; none if the shape of inputs is not known yet."""

    @abstractmethod
    def parts(self, path: Path, keep: Collection[str]) -> Iterator[ScoredRows]:
        """Predictions, part by part, with the columns `keep`; a file without rows has one part, without rows."""

    @abstractmethod
    def held_out(self, path: Path) -> tuple[Any, Any]:
        """Rows in a file, and their targets."""

    @abstractmethod
    def predictions(self, x: Any) -> Iterator[Predictive]:
        """Predictions of held-out rows, part by part."""

    def check_keep(self, keep: Collection[str]) -> None:
        """Refuse to carry over columns with the name of a prediction."""
        taken = next((name for name in keep if name in self.without_rows()), None)
        if taken is not None:
            raise InvalidInputError(f"the column {taken!r} cannot be kept: predictions have one of that name.")

    def choose_referral(self, path: Path, target_accuracy: float, confidence: float) -> None:
        """Refer as many predictions as held-out rows in a file require; see `fsvi.Referral`."""
        with building_from(path):
            x, y = self.held_out(path)
            parts = [p.summary() for p in self.predictions(x)]
            if parts[0].is_numeric:
                raise InvalidInputError("the model predicts real numbers: --refer-for is for classes, so leave it out.")
            labels = self.model._as_indices(y) if hasattr(self.model, "classes_") else y
            self.referral = Referral(concatenate(parts), labels, target_accuracy, confidence)

    def rows_at_once(self, width: int) -> int:
        """How many rows of `width` numbers fit into memory with all their draws."""
        outputs = max(1, getattr(self.model if isinstance(self, ArrayScorer) else self.model.method_, "num_outputs", 1))
        return max(1, min(ROWS, _MOST_NUMBERS // (self.samples * outputs), _MOST_NUMBERS // max(1, width)))

    def columns_of(self, p: Predictive, classes: NDArray[Any] | None = None) -> Columns:
        """Predictions as columns of a table, with one column per class."""
        columns = {name: _array(values) for name, values in p.columns().items()}
        if "label" in columns:
            shares = _array(p.class_probabilities())
            names = np.arange(shares.shape[1]) if classes is None else classes
            columns["label"] = names[columns["label"]]
            if len(names) <= _MOST_CLASSES:
                columns |= {f"probability_{name}": shares[:, at] for at, name in enumerate(names.tolist())}
        if self.referral is not None:
            columns["decision"] = np.where(_array(self.referral.decide(p)).ravel(), "keep", "refer")
        return columns


class TableScorer(Scorer):
    """An estimator, for rows of CSV and Parquet files."""

    def parts(self, path: Path, keep: Collection[str]) -> Iterator[ScoredRows]:
        """Predictions of rows; `line` says where in the file they are. A last part says how the rows have drifted."""
        seen, scored = Seen(self.model.sketch_, self.model.encoder_), None
        unknown = set(self.model.encoder_.check_names(column_names(path))) - {*keep, self.model.target_name_}
        unused = [f"Columns that the model does not know are not used: {', '.join(map(repr, sorted(unknown)))}."]
        told = unused * bool(unknown)
        for file in self._chunks(path, keep, self.rows_at_once(len(self.model.encoder_.outputs))):
            told += [sentence] if (sentence := file.skipped_sentence()) is not None else []
            if not len(file.table):
                yield ScoredRows({**file.kept, **self.without_rows()}, 0, told)
                continue
            encoded, surprises = self.model.encoder_.examine(file.table)
            seen.add(file.table)
            scored = {**file.kept, "line": file.table.lines, **self._columns(self.model._standardized(encoded))}
            yield ScoredRows(scored, len(file.table), told + surprises)
            told = []
        drift = [finding.sentence for finding in seen.diagnosis() if finding.level != "ok"]
        if scored is not None and drift:
            yield ScoredRows({name: values[:0] for name, values in scored.items()}, 0, drift)

    def without_rows(self) -> Columns:
        """The columns of no predictions."""
        columns = self._columns(torch.zeros(1, len(self.model.encoder_.outputs), dtype=torch.float64))
        return {name: values[:0] for name, values in {"line": np.zeros(1, dtype=np.int64), **columns}.items()}

    def held_out(self, path: Path) -> tuple[Any, Any]:
        """The rows that have a target, without that column, and the targets."""
        table, name = read_table(path).table, self.model.target_name_
        if name not in table.names:
            raise InvalidInputError(f"{path} lacks the column {name!r} with the right answers.")
        table = table.take(~missing(table.columns[name]))
        if not len(table):
            raise InvalidInputError(f"{path} has no row with a right answer in the column {name!r}.")
        values = table.columns[name]
        if hasattr(self.model, "classes_"):
            y = self.model.classes_[self.model._as_indices([label(value) for value in values.tolist()])]
        else:
            y = as_numbers(name, values, table.lines)
        return table.without([name]), y

    def predictions(self, x: Any) -> Iterator[Predictive]:
        """Calibrated predictions of a table."""
        inputs = self.model._standardized(self.model.encoder_.examine(x)[0])
        parts = inputs.split(self.rows_at_once(inputs.shape[1]))
        return (self.model._calibrated(self._raw(part)) for part in parts)

    def _chunks(self, path: Path, keep: Collection[str], rows: int) -> Iterator[Any]:
        columns = self.model.encoder_.columns
        numbers = [column.name for column in columns if isinstance(column, NumberColumn)]
        return read_chunks(path, rows, self.model.encoder_.names, keep, numbers)

    def _raw(self, inputs: Tensor) -> Predictive:
        """The prediction in the targets' units before any calibration."""
        p: Predictive = self.model._in_target_units(self.model._predict(inputs, self.samples, self.seed))
        return p

    def _columns(self, inputs: Tensor) -> Columns:
        """Labels by their names, and conformal sets or intervals after a calibration."""
        model, raw = self.model, self._raw(inputs)
        columns = self.columns_of(model._calibrated(raw), getattr(model, "classes_", None))
        if not raw.is_numeric and model._is_conformal:
            sets = model.calibration_.sets(raw, _ALPHA).numpy()
            columns["set_95"] = np.array(["|".join(map(str, model.classes_[row].tolist())) for row in sets], object)
        elif model._is_conformal:
            intervals = model.calibration_.intervals(raw, _ALPHA)
            columns["lower"], columns["upper"] = intervals.lower[:, 0].numpy(), intervals.upper[:, 0].numpy()
        return columns


class ArrayScorer(Scorer):
    """A method, for inputs in .npy and .npz files (the array x), and for columns of numbers."""

    model: Method | Calibrated

    def parts(self, path: Path, keep: Collection[str]) -> Iterator[ScoredRows]:
        """Predictions of inputs; `row` counts them from 1."""
        start, kept = 0, Columns()
        shape = self.model.input_shape if isinstance(self.model.input_shape, tuple) else ()
        for x, kept in _read_parts(path, keep, self.rows_at_once(math.prod(shape))):
            if len(x):
                columns = self._columns(as_inputs(self.model, x, path, start + 1))
                row = np.arange(start + 1, start + len(x) + 1)
                start += len(x)
                yield ScoredRows({**kept, "row": row, **columns}, len(x))
        if start == 0:
            yield ScoredRows({**kept, **self.without_rows()}, 0)

    def without_rows(self) -> Columns:
        """The columns of no predictions; none if the shape of inputs is not known yet."""
        shape = self.model.input_shape
        if not isinstance(shape, tuple) or any(not isinstance(size, int) for size in shape):
            return {}
        columns = self._columns(torch.zeros(1, *shape, dtype=self.model.dtype))
        return {name: values[:0] for name, values in {"row": np.zeros(1, dtype=np.int64), **columns}.items()}

    def held_out(self, path: Path) -> tuple[Any, Any]:
        """The arrays x and y of a .npz file."""
        if path.suffix.lower() != ".npz":
            raise FileFormatError(f"{path} has no arrays with names: use numpy.savez and the names x and y.")
        return as_inputs(self.model, _joined(path, "x"), path), torch.as_tensor(as_whole(_joined(path, "y")))

    def predictions(self, x: Any) -> Iterator[Predictive]:
        """Predictions of a tensor."""
        parts = x.split(self.rows_at_once(math.prod(x.shape[1:])))
        return (self.model.predict(part, self.samples, self.seed, self.batch_size) for part in parts)

    def _columns(self, inputs: Tensor) -> Columns:
        p = self.model.predict(inputs, self.samples, self.seed, self.batch_size)
        if len(p) != len(inputs):
            raise InvalidInputError("a model with outputs at every position cannot score files part by part.")
        return self.columns_of(p)


def _read_parts(path: Path, keep: Collection[str], rows: int) -> Iterator[tuple[NDArray[Any], Columns]]:
    """The numbers in a file, and the columns to carry over, part by part."""
    if path.name.lower().endswith(ARRAY_ENDINGS):
        if keep:
            raise InvalidInputError(f"{path} has no columns with names: leave --keep out.")
        yield from ((x, {}) for x in read_arrays(path, rows))
        return
    for file in read_chunks(path, rows, keep=keep, needs_names=False):
        if file.skipped:
            raise FileFormatError(f"{path} has rows of the wrong length: {file.skipped_sentence()}")
        columns = [as_numbers(name, values, file.table.lines) for name, values in file.table.columns.items()]
        yield np.column_stack(columns), dict(file.kept)


def make_net(name: str) -> nn.Module:
    """What the function of a `module:function` returns; the module is looked for in the current folder first."""
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        net = getattr(importlib.import_module(module), function)()
    except Exception as error:  # it is the user's code
        said = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidInputError(f"--net {name} cannot be called without arguments: {said}.") from error
    finally:
        sys.path.remove("")
    if not isinstance(net, nn.Module):
        raise InvalidInputError(f"--net {name} returns a {type(net).__name__}, not a torch.nn.Module.")
    return net


def as_inputs(method: Method | Calibrated, x: np.ndarray, path: Path, first: int = 1) -> Tensor:
    """Inputs in the shape and the type that the network takes; `first` is the number of the first row in its file."""
    shape = method.input_shape
    flat = x.reshape(len(x), -1)
    bad = np.flatnonzero(~np.isfinite(flat).all(1))
    if len(bad):
        raise InvalidInputError(
            f"{path} has NaN, infinite or missing values in {len(bad)} of {len(x)} rows, first in row "
            f"{bad[0] + first}: fill them in or drop those rows."
        )
    if isinstance(shape, tuple) and (x.ndim <= 2 or [n for n in x.shape[1:] if n > 1] == [n for n in shape if n > 1]):
        columns, wanted = flat.shape[1], math.prod(shape)
        if columns != wanted:
            form = "×".join(map(str, shape))
            hint = ": is a label or a row number among them?" if columns == wanted + 1 else "."
            wanted_form = f"{wanted} ({form})" if len(shape) > 1 else form
            raise InvalidInputError(f"{path} has {columns} columns, but the model takes {wanted_form} numbers{hint}")
        x = flat.reshape(len(flat), *shape)
    real = torch.as_tensor(x).to(method.dtype)
    if any(isinstance(module, nn.Embedding) for module in method.net.modules()):
        try:
            method.network.outputs_at(real[:2])
        except FSVIError:  # an embedding looks up whole numbers
            whole = torch.as_tensor(as_whole(x))
            return real if whole.is_floating_point() else whole.long()
    return real


def read_inputs(path: Path) -> NDArray[Any]:
    """All inputs of a method in a .npy, .npz (the array x), .csv or .parquet file."""
    if path.name.lower().endswith(ARRAY_ENDINGS):
        return _joined(path, "x")
    return np.concatenate([x for x, _ in _read_parts(path, (), ROWS)])


def as_whole(values: NDArray[Any]) -> NDArray[Any]:
    """Real numbers as integers if all of them are whole; others as they are."""
    is_whole = values.dtype.kind == "f" and bool(((abs(values) < _EXACT) & (values == np.round(values))).all())
    return values.astype(np.int64) if is_whole else values


def tell_once(surprises: Iterable[str], told: set[str], tell: Callable[[str], object]) -> None:
    """Tell what is new; counts differ from part to part, so a column's first sentence stands for all."""
    for sentence in surprises:
        column = " ".join(sentence.split(" ")[:4])
        if column not in told and len(told) < _MOST_TOLD:
            told.add(column)
            tell(sentence)


def _joined(path: Path, name: str) -> NDArray[Any]:
    parts = list(read_arrays(path, ROWS, name))
    if not parts:
        raise FileFormatError(f"{path} has no rows: at least one is needed.")
    return np.concatenate(parts)


def _array(column: Tensor) -> NDArray[Any]:
    """The column as numpy's, which has no bfloat16."""
    values: NDArray[Any] = (column.float() if column.dtype == torch.bfloat16 else column).cpu().numpy()
    return values
