"""Predictions of a saved method for arrays of inputs, as the network takes them."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fsvi.calibration import Calibrated
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.methods import Method, load
from fsvi.networks.devices import find_device
from fsvi.referral import Referral
from fsvi.validation import first_line

Trained = Method | Calibrated
"""What a file of `Method.save` or `Calibrated.save` holds."""


_EXACT = np.float64(2**53)
"""Below this, float64 represents every whole number exactly."""


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


def as_inputs(method: Trained, x: np.ndarray, path: Path, first: int = 1) -> Tensor:
    """Inputs in the shape and the type that the network takes; an error says why this is impossible.

    Args:
        method: The model.
        x: The numbers that were read.
        path: Their file, which errors name.
        first: The row of the file that the first of them has, counted from 1.
    """
    shape = method.input_shape
    flat = x.reshape(len(x), -1)
    bad = np.flatnonzero(~np.isfinite(flat).all(1))
    if len(bad):
        raise InvalidInputError(
            f"{path} has NaN, infinite or missing values in {len(bad)} of {len(x)} rows, first in row "
            f"{bad[0] + first}: fill them in or drop those rows."
        )
    if shape is not None and (x.ndim <= 2 or _without_ones(x.shape[1:]) == _without_ones(shape)):
        x = _reshaped(flat, shape, path)
    return _typed(method, x)


def as_whole(values: np.ndarray) -> np.ndarray:
    """Real numbers as integers if all of them are whole; others as they are."""
    is_whole = values.dtype.kind == "f" and bool(((abs(values) < _EXACT) & (values == np.round(values))).all())
    return values.astype(np.int64) if is_whole else values


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
