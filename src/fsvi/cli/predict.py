"""`fsvi predict` for arrays: predictions of a saved method for inputs in a file, and which of them to refer."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fsvi.calibration import Calibrated
from fsvi.cli.files import Columns, as_whole, read_examples, read_inputs
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.methods import Method, load
from fsvi.networks.devices import find_device
from fsvi.predictive import Predictive, concatenate
from fsvi.referral import Referral
from fsvi.serialization import building_from
from fsvi.validation import first_line

_ROWS = 10_000
"""Inputs predicted at a time, all their draws in memory."""

Trained = Method | Calibrated
"""What a file of `Method.save` or `Calibrated.save` holds."""


@dataclass(frozen=True)
class Sampling:
    """How to predict.

    Attributes:
        samples: The number of draws of the function.
        batch_size: The number of inputs per pass through the network.
        seed: The seed of the draws.
    """

    samples: int = 100
    batch_size: int = 512
    seed: int = 0


@dataclass(frozen=True)
class Predictions:
    """Predictions for a file.

    Attributes:
        columns: A table with one row per input.
        referral: The rule that decided which predictions to keep; None if all are kept.
    """

    columns: Columns
    referral: Referral | None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def kept(self) -> int:
        """The number of predictions to keep."""
        return int((self.columns["decision"] == "keep").sum()) if self.referral else len(self)

    def document(self) -> dict[str, Any]:
        """A summary of the table for other programs."""
        if self.referral is None:
            return {"inputs": len(self)}
        return {
            "inputs": len(self),
            "kept": self.kept,
            "referred": len(self) - self.kept,
            "referral": self.referral.to_dict(),
        }

    def __str__(self) -> str:
        if self.referral is None:
            return f"{len(self)} predictions."
        referred = len(self) - self.kept
        return f"{len(self)} predictions: {self.kept} to keep, {referred} to refer. {self.referral}"


def predict_file(method: Trained, inputs: Path, sampling: Sampling, referral: Referral | None = None) -> Predictions:
    """Predict the inputs in a file, and decide which predictions to keep.

    Args:
        method: The model.
        inputs: The file.
        sampling: How to predict.
        referral: The rule that decides; None keeps all.
    """
    with building_from(inputs):
        x = as_inputs(method, read_inputs(inputs), inputs)
        tables = [table_of(p, referral) for p in _predict(method, x, sampling)]
    return Predictions({name: np.concatenate([table[name] for table in tables]) for name in tables[0]}, referral)


def calibrate(method: Trained, path: Path, sampling: Sampling, target_accuracy: float, confidence: float) -> Referral:
    """Choose the threshold for referral on held-out inputs x and labels y in a .npz file.

    Args:
        method: The model.
        path: The file.
        sampling: How to predict.
        target_accuracy: The accuracy that the kept predictions should have.
        confidence: The confidence with which they have it.
    """
    x, y = read_examples(path)
    with building_from(path):
        inputs = as_inputs(method, x, path)
        parts = [p.summary() for p in _predict(method, inputs, sampling)]
        if parts[0].is_numeric:
            raise InvalidInputError("the model predicts real numbers: --refer-for is for classes, so leave it out.")
        return Referral(concatenate(parts), y, target_accuracy, confidence)


def load_model(path: Path, net: str | None, device: str | None = None) -> Trained:
    """The model in a file.

    Args:
        path: The file.
        net: Names the function that makes the network, as `module:function`; None uses the file's description of it.
        device: Where to predict; None for the CPU.
    """
    model = load(path, None if net is None else make_net(net))
    if device is not None:
        (model if isinstance(model, Method) else model.method).to(find_device(device))
    return model


def make_net(name: str) -> nn.Module:
    """What the function of a `module:function` returns; the module is looked for in the current folder first."""
    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        net = getattr(importlib.import_module(module), function)()
    except Exception as error:  # it is the user's code
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidInputError(f"--net {name} cannot be called without arguments: {reason}.") from error
    finally:
        sys.path.remove("")
    if not isinstance(net, nn.Module):
        raise InvalidInputError(f"--net {name} returns a {type(net).__name__}, not a torch.nn.Module.")
    return net


def as_inputs(method: Trained, x: np.ndarray, path: Path) -> Tensor:
    """Inputs in the shape and the type that the network takes; an error says why this is impossible.

    Args:
        method: The model.
        x: The numbers that were read.
        path: Their file, which errors name.
    """
    shape = method.input_shape
    flat = x.reshape(len(x), -1)
    bad = np.flatnonzero(~np.isfinite(flat).all(1))
    if len(bad):
        raise InvalidInputError(
            f"{path} has NaN, infinite or missing values in {len(bad)} of {len(x)} rows, first in row {bad[0] + 1}: "
            "fill them in or drop those rows."
        )
    if shape is not None and (x.ndim <= 2 or _without_ones(x.shape[1:]) == _without_ones(shape)):
        x = _reshaped(flat, shape, path)
    return _typed(method, x)


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _typed(method: Trained, x: np.ndarray) -> Tensor:
    """Numbers of the network's own type, or integers if the network looks them up in an embedding."""
    real = torch.as_tensor(x).to(method.dtype)
    if any(isinstance(module, nn.Embedding) for module in method.net.modules()):
        try:
            method.see(real[:2])
        except FSVIError:
            whole = torch.as_tensor(as_whole(x))
            return real if whole.is_floating_point() else whole.long()
    return real


def _reshaped(flat: np.ndarray, shape: tuple[int, ...], path: Path) -> np.ndarray:
    columns, wanted = flat.shape[1], math.prod(shape)
    if columns != wanted:
        form = "×".join(map(str, shape))
        wanted_form = f"{wanted} ({form})" if len(shape) > 1 else form
        hint = ": is a label or a row number among them?" if columns == wanted + 1 else "."
        raise InvalidInputError(f"{path} has {columns} columns, but the model takes {wanted_form} numbers{hint}")
    return flat.reshape(len(flat), *shape)


def _predict(method: Trained, x: Tensor, sampling: Sampling) -> Iterator[Predictive]:
    """Predictions for one part of the inputs at a time: all draws for a large file would not fit into memory."""
    rows = max(sampling.batch_size, _ROWS // sampling.batch_size * sampling.batch_size)
    for part in x.split(rows):
        yield method.predict(part, sampling.samples, sampling.seed, sampling.batch_size)


def table_of(p: Predictive, referral: Referral | None) -> dict[str, np.ndarray]:
    """Predictions as columns of a table.

    Args:
        p: The predictions.
        referral: The rule that decides which of them to keep; None adds no such column.
    """
    table = {name: _array(column) for name, column in p.columns().items()}
    decisions = {} if referral is None else {"decision": np.where(_array(referral.decide(p)), "keep", "refer")}
    return {**table, **decisions}


def _array(column: Tensor) -> np.ndarray:
    """The column as numpy's, which has no bfloat16."""
    return (column.float() if column.dtype == torch.bfloat16 else column).cpu().numpy()
