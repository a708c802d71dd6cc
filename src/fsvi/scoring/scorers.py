"""Models that predict the rows of files, part by part: estimators for tables, methods for arrays."""

from __future__ import annotations

import math
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fsvi.calibration import Calibrated, Referral
from fsvi.diagnosis.drift import Seen
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.estimators.base import Estimator
from fsvi.likelihoods import Predictive, concatenate
from fsvi.likelihoods.predictive import named
from fsvi.methods import Method, load
from fsvi.networks.devices import find_device
from fsvi.serialization import ESTIMATOR, building_from, file_kind
from fsvi.tables.columns import as_numbers, missing
from fsvi.tables.reading import ARRAY_ENDINGS, TableReader, read_array, read_table
from fsvi.tables.table import Table, label
from fsvi.validation import check_count, first_line

ROWS, _MOST_NUMBERS = 8_192, 2**25
"""Rows that are predicted at a time, and numbers that all their draws may have."""
_MOST_CLASSES = 1_000
"""With more classes, only the most probable one has a column."""
_ALPHA = 0.05
_EXACT = 2**53
"""Below this, float64 represents every whole number exactly."""
Columns = dict[str, Any]
Tell = Callable[[str], object]


@dataclass(frozen=True)
class ModelFile:
    """A model in a file and how it predicts, for processes that load it themselves; see `predict_files`."""

    path: Path
    net: str | None = None
    device: str | None = None
    samples: int | None = None

    def load(self) -> Scorer:
        """The model in memory, with its own number of draws where none is given."""
        net = None if self.net is None else _made_net(self.net)
        is_table = file_kind(self.path) == ESTIMATOR
        model: Any = Estimator.load(self.path, net) if is_table else load(self.path, net)
        # A calibration promises nothing for other draws than its own.
        own = model.num_samples if is_table or isinstance(model, Calibrated) else 100
        samples = own if self.samples is None else check_count("samples", self.samples)
        scorer: Scorer = (TableScorer if is_table else ArrayScorer)(model, samples)
        if self.device is not None:
            scorer.method.to(find_device(self.device))
        if is_table:
            with building_from(self.path):  # forged values show when they are used
                scorer.columns(torch.zeros(1, len(model.encoder_.outputs), dtype=torch.float64))
        return scorer


class Scorer(ABC):
    """A model that predicts files part by part."""

    referral: Referral | None = None
    """which predictions to keep; None adds no column about it"""

    def __init__(self, model: Any, samples: int) -> None:
        self.model, self.samples = model, samples

    @abstractmethod
    def read(self, path: Path, keep: Collection[str], tell: Tell) -> Iterator[tuple[Tensor, Columns]]:
        """Inputs, part by part, with the columns `keep` and the rows' numbers; without rows, one part without any."""

    @abstractmethod
    def held_out(self, path: Path) -> tuple[Any, Any]:
        """Rows in a file, and their targets."""

    @abstractmethod
    def predict(self, inputs: Tensor) -> tuple[Predictive, Columns]:
        """Calibrated predictions, and their columns."""

    @property
    def method(self) -> Any:
        """The method that makes the predictions, perhaps inside its calibration."""
        return getattr(self.model, "method_", self.model)

    def rows_at_once(self, width: int) -> int:
        """How many rows of `width` numbers are predicted at a time, all their draws in memory."""
        numbers = max(width, self.samples * self.method.network.num_outputs, 1)
        return max(1, min(ROWS, _MOST_NUMBERS // numbers))

    def parts(self, path: Path, keep: Collection[str], tell: Tell) -> Iterator[Columns]:
        """Predictions as columns, part by part; `tell` gets sentences about rows that are unlike training."""
        for inputs, known in self.read(path, keep, tell):
            columns = self.columns(inputs)
            taken = next((name for name in keep if name in columns), None)
            if taken is not None:
                raise InvalidInputError(f"the column {taken!r} cannot be kept: predictions have one of that name.")
            yield {**known, **columns}

    def columns(self, inputs: Tensor) -> Columns:
        """Predictions as columns of a table, with one column per class."""
        if not len(inputs):
            return {name: values[:0] for name, values in self.columns(inputs.new_zeros(1, *inputs.shape[1:])).items()}
        p, columns = self.predict(inputs)
        if "label" in columns:
            shares = p.class_probabilities().cpu().numpy()
            names = getattr(self.model, "classes_", np.arange(shares.shape[1]))
            columns["label"] = names[columns["label"]]
            if len(names) <= _MOST_CLASSES:
                columns |= {f"probability_{name}": shares[:, at] for at, name in enumerate(names.tolist())}
        if self.referral is not None:
            columns["decision"] = np.where(self.referral.decide(p).cpu().numpy().ravel(), "keep", "refer")
        return columns

    def choose_referral(self, path: Path, target_accuracy: float, confidence: float) -> None:
        """Refer as many predictions as held-out rows in a file require; see `fsvi.Referral`."""
        with building_from(path):
            x, y = self.held_out(path)
            if isinstance(self, TableScorer):
                x, y = self.model._inputs(x), self.model._as_indices(y) if hasattr(self.model, "classes_") else y
            parts = [self.predict(part)[0].summary() for part in x.split(self.rows_at_once(math.prod(x.shape[1:])))]
            if parts[0].is_numeric:
                raise InvalidInputError("the model predicts real numbers: --refer-for is for classes, so leave it out.")
            self.referral = Referral(concatenate(parts), y, target_accuracy, confidence)


class TableScorer(Scorer):
    """An estimator, for rows of CSV and Parquet files."""

    def read(self, path: Path, keep: Collection[str], tell: Tell) -> Iterator[tuple[Tensor, Columns]]:
        """Encoded rows; `line` says where in the file they are. At the end, how the rows have drifted is told."""
        reader, encoder = TableReader(path), self.model.encoder_
        unknown = set(encoder.check_names(reader.names)) - {*keep, self.model.target_name_}
        if unknown:
            tell(f"Columns that the model does not know are not used: {', '.join(map(repr, sorted(unknown)))}.")
        seen, width = Seen(self.model.sketch_, encoder), len(encoder.outputs)
        for table, kept in reader.parts(self.rows_at_once(width), encoder.names, keep):
            encoded, surprises = encoder.examine(table)
            seen.add(table)
            for sentence in surprises:
                tell(sentence)
            yield torch.as_tensor(self.model.scaler_.transform(encoded)), {**kept, "line": table.lines}
        for finding in seen.diagnosis():
            if finding.level != "ok":
                tell(finding.sentence)

    def held_out(self, path: Path) -> tuple[Table, Any]:
        """The rows that have a target, without that column, and the targets."""
        table, name = read_table(path), self.model.target_name_
        if name not in table.names:
            raise InvalidInputError(f"{path} lacks the column {name!r} with the right answers.")
        table = table.take(~missing(table.columns[name]))
        if not len(table):
            raise InvalidInputError(f"{path} has no row with a right answer in the column {name!r}.")
        if not hasattr(self.model, "classes_"):
            return table.without([name]), as_numbers(name, table)
        labels = [label(value) for value in table.columns[name].tolist()]
        return table.without([name]), self.model.classes_[self.model._as_indices(labels)]

    def predict(self, inputs: Tensor) -> tuple[Predictive, Columns]:
        """Predictions in the targets' units, and conformal sets or intervals after a calibration."""
        model = self.model
        raw = model._predict(inputs, self.samples)
        p = model._calibrated(raw)
        columns = _arrays(p.columns())
        if model._is_conformal and raw.is_numeric:
            lower, upper = model.calibration_.intervals(raw, _ALPHA)
            columns |= _arrays(named({"lower": lower, "upper": upper}))
        elif model._is_conformal:
            sets = model.calibration_.sets(raw, _ALPHA).numpy()
            columns["set_95"] = np.array(["|".join(map(str, model.classes_[row].tolist())) for row in sets], object)
        ends = [name for name in columns if name.startswith(("lower", "upper"))]
        return p, {**columns, **{name: model._bounded(columns[name]) for name in ends}}


class ArrayScorer(Scorer):
    """A method, for inputs in .npy and .npz files (the array x), and for columns of numbers."""

    model: Method

    def read(self, path: Path, keep: Collection[str], tell: Tell) -> Iterator[tuple[Tensor, Columns]]:
        """Inputs; `row` counts them from 1."""
        start, shape = 0, self.model.input_shape
        for x, kept in _numbers(path, self.rows_at_once(math.prod(shape) if isinstance(shape, tuple) else 1), keep):
            inputs = as_inputs(self.model, x, path, start + 1)
            yield inputs, {**kept, "row": np.arange(start + 1, start + len(x) + 1)}
            start += len(x)

    def held_out(self, path: Path) -> tuple[Tensor, Tensor]:
        """The arrays x and y of a .npz file."""
        if path.suffix.lower() != ".npz":
            raise FileFormatError(f"{path} has no arrays with names: use numpy.savez and the names x and y.")
        return as_inputs(self.model, read_array(path), path), torch.as_tensor(_as_whole(read_array(path, "y")))

    def predict(self, inputs: Tensor) -> tuple[Predictive, Columns]:
        """Predictions with the draws of seed 0, or of a calibration."""
        p = self.model.predict(inputs, self.samples)
        if len(p) != len(inputs):
            raise InvalidInputError("a model with outputs at every position cannot score files part by part.")
        return p, _arrays(p.columns())


def _numbers(path: Path, rows: int, keep: Collection[str]) -> Iterator[tuple[NDArray[Any], Columns]]:
    """The numbers in a file, and the columns to carry over, part by part."""
    if path.name.lower().endswith(ARRAY_ENDINGS):
        if keep:
            raise InvalidInputError(f"{path} has no columns with names: leave --keep out.")
        x = read_array(path)
        yield from ((x[start : start + rows], {}) for start in range(0, len(x), rows))
        return
    for table, kept in TableReader(path).parts(rows, keep=keep):
        yield np.column_stack([as_numbers(name, table) for name in table.names]), kept


def read_inputs(method: Method, path: Path) -> Tensor:
    """All inputs of a method in a .npy, .npz (the array x), .csv or .parquet file."""
    return as_inputs(method, np.concatenate([x for x, _ in _numbers(path, ROWS, ())]), path)


def as_inputs(method: Method, x: NDArray[Any], path: Path, first: int = 1) -> Tensor:
    """Inputs in the shape and the type that the network takes; `first` is the number of the first row in its file."""
    shape, flat = method.input_shape, np.asarray(x, np.float64).reshape(len(x), math.prod(x.shape[1:]))
    bad = np.flatnonzero(~np.isfinite(flat).all(1))
    if len(bad):
        raise InvalidInputError(
            f"{path} has NaN, infinite or missing values in {len(bad)} of {len(x)} rows, first in row "
            f"{bad[0] + first}: fill them in or drop those rows."
        )
    if isinstance(shape, tuple) and (x.ndim <= 2 or [n for n in x.shape[1:] if n > 1] == [n for n in shape if n > 1]):
        if flat.shape[1] != math.prod(shape):
            form = "×".join(map(str, shape))
            raise InvalidInputError(
                f"{path} has {flat.shape[1]} columns, but the model takes {form} numbers: is a label among them?"
            )
        x = flat.reshape(len(flat), *shape)
    x = np.array(x, np.float64)
    if any(isinstance(module, nn.Embedding) for module in method.net.modules()):
        x = _as_whole(x)  # an embedding looks up whole numbers
    inputs = torch.as_tensor(x)
    return inputs.to(method.dtype) if inputs.is_floating_point() else inputs


def _as_whole(values: NDArray[Any]) -> NDArray[Any]:
    """Real numbers as integers if all of them are whole; others as they are."""
    is_whole = values.dtype.kind == "f" and bool(((abs(values) < _EXACT) & (values == np.round(values))).all())
    return values.astype(np.int64) if is_whole else values


def _made_net(name: str) -> nn.Module:
    """What the function of a `module:function` returns; the module is looked for in the current folder first."""
    sys.path.insert(0, "")
    try:
        net = pkgutil.resolve_name(name)()
    except Exception as error:  # it is the user's code
        said = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidInputError(f"--net {name} cannot be called without arguments: {said}.") from error
    finally:
        sys.path.remove("")
    if not isinstance(net, nn.Module):
        raise InvalidInputError(f"--net {name} returns a {type(net).__name__}, not a torch.nn.Module.")
    return net


def _arrays(columns: Mapping[str, Tensor]) -> Columns:
    return {name: values.cpu().numpy() for name, values in columns.items()}
