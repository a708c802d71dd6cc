"""Checks of user input. Each error is one sentence that names the value."""

from __future__ import annotations

import sys
from collections.abc import Collection
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.inputs import bundle, is_structured

LARGEST_SEED = 2**32 - 1
"""The limit of NumPy, and so of Optuna and scikit-learn."""


def check_count(name: str, value: int, least: int = 1) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInputError(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def check_seed(value: int) -> int:
    """A whole number that every random number generator accepts."""
    if check_count("seed", value, least=0) > LARGEST_SEED:
        raise InvalidInputError(f"seed={value} must be a whole number of at most {LARGEST_SEED}.")
    return int(value)


def check_positive(name: str, value: float, zero: bool = False) -> float:
    """A finite number above 0, or 0 itself if `zero`."""
    value = value.item() if isinstance(value, np.floating) else value  # the largest float64 is infinite as a float32
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max or (value == 0 and not zero):
        raise InvalidInputError(f"{name}={value!r} must be a finite number {'of at least' if zero else 'above'} 0.")
    return float(value)


def check_fraction(name: str, value: float) -> float:
    """A number from 0 to below 1."""
    number = check_positive(name, value, zero=True)
    if number >= 1:
        raise InvalidInputError(f"{name}={value!r} must be a number from 0 to below 1.")
    return number


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """One of several names; the error suggests the closest one."""
    if not isinstance(value, str) or value not in choices:
        near = get_close_matches(value.lower(), choices, n=1) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InvalidInputError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}{hint}")
    return value


def check_type(name: str, value: Any, kind: type, wanted: str) -> None:
    """An object of a class."""
    if not isinstance(value, kind):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise InvalidInputError(f"{name} is {given}, not {wanted}.")


def as_tensor(name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor from a tensor, an array or nested lists."""
    try:
        is_frame = hasattr(value, "__array__") and not isinstance(value, (Tensor, np.ndarray))
        tensor = torch.as_tensor(np.array(value) if is_frame else value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} cannot be converted to a tensor: {first_line(error)}.") from error
    if tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        kind = "on the meta device" if tensor.is_meta else f"in the layout {layout}"
        raise InvalidInputError(f"{name} is a tensor {kind}: give a dense tensor with values.")
    return tensor


def check_inputs(x: Any, dtype: torch.dtype) -> Any:
    """Inputs (n, ...), n ≥ 1, all finite; floating ones in the network's `dtype`.

    Tuples and dictionaries of tensors become a `Bundle`, whose tensors are checked one by one.
    """
    if is_structured(x):
        return bundle(x, lambda name, value: _check_rows(f"x[{name!r}]", f"inputs {name!r}", value, dtype, 1))
    return _check_rows("x", "inputs", x, dtype, 2)


def _check_rows(name: str, called: str, x: Any, dtype: torch.dtype, least_dim: int) -> Tensor:
    """A tensor of inputs, checked; with `least_dim` dimensions at least if it has real numbers."""
    x = as_tensor(name, x)
    if x.dim() < (least_dim if x.is_floating_point() else 1):
        raise InvalidInputError(
            f"{called} have shape {tuple(x.shape)}; a batch (n, ...) is needed, so add a dimension."
        )
    if len(x) == 0:
        raise InvalidInputError(f"{called} of shape {tuple(x.shape)} are empty: at least one is needed.")
    if not x.is_floating_point():
        return x
    x = x.to(dtype)
    if not bool(x.sum().isfinite()) and not bool(x.isfinite().all()):  # a sum is much faster, and may overflow
        bad = int((~x.isfinite()).sum())
        raise InvalidInputError(f"{called} have {bad} NaN or infinite values in {dtype}: clean or drop those rows.")
    return x


def check_labels(y: Tensor, num_classes: int) -> Tensor:
    """Labels 0..num_classes − 1 as int64 (n,)."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidInputError(f"labels have type {y.dtype}; Categorical needs integers 0..{num_classes - 1}.")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() != 1:
        raise InvalidInputError(f"labels have shape {tuple(y.shape)}; Categorical needs one integer per input.")
    y = y.long()
    least, largest = (int(y.min()), int(y.max())) if len(y) else (0, 0)
    if least < 0 or largest >= num_classes:
        hint = f"; where {least} means no label, drop it or use fsvi.Categorical(ignore_index={least})" * (least < 0)
        raise InvalidInputError(
            f"labels lie in {least}..{largest}, but the network has {num_classes} outputs: "
            f"use labels 0..{num_classes - 1}{hint}."
        )
    return y


def first_line(error: BaseException) -> str:
    """The first line of another library's error, for use inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0].rstrip(". ") if lines else type(error).__name__
