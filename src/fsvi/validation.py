"""Checks of what users give, each failing with one sentence that names the value."""

from __future__ import annotations

import math
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsvi.errors import InvalidInputError


def check_count(name: str, value: int, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidInputError(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def check_positive(name: str, value: float, zero: bool = False) -> float:
    """A finite number above zero, or not below it when `zero` is allowed."""
    fine = isinstance(value, (int, float)) and math.isfinite(value) and (value > 0 or (zero and value == 0))
    if not fine:
        raise InvalidInputError(f"{name}={value!r} must be a number {'of at least' if zero else 'above'} 0.")
    return float(value)


def check_choice(name: str, value: str, choices: Collection[str]) -> str:
    """One of a few names; the nearest is suggested."""
    if value not in choices:
        near = get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidInputError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}{hint}")
    return value


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor of what the user gave: a tensor, an array, or nested lists."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} cannot be made a tensor: {error}.") from error


def check_inputs(x: Any, dtype: torch.dtype) -> Tensor:
    """Inputs (n, ...), n ≥ 1, all finite; floating ones in the network's own `dtype`."""
    x = as_tensor("x", x)
    if x.dim() < 2 and x.is_floating_point() or x.dim() < 1:
        raise InvalidInputError(f"inputs have shape {tuple(x.shape)}; a batch (n, ...) is needed, so add a dimension.")
    if len(x) == 0:
        raise InvalidInputError("inputs are empty: at least one is needed.")
    if x.is_floating_point():
        if not bool(x.isfinite().all()):
            raise InvalidInputError(f"inputs hold {_count_bad(x)} NaN or infinite values: clean or drop those rows.")
        x = x.to(dtype)
    return x


def _count_bad(x: Tensor) -> int:
    return int((~x.isfinite()).sum())
