"""Shortening of long curves before they are written into a result."""

from __future__ import annotations

from typing import Any

import torch

_POINTS = 100


def thin(values: Any, num: int = _POINTS) -> list[float]:
    """Evenly spaced values, including the first and the last, rounded to five decimals.

    Args:
        values: The values.
        num: The largest number of values to keep.
    """
    values = torch.as_tensor(values, dtype=torch.float64)
    index = torch.linspace(0, len(values) - 1, min(num, len(values))).round().long()
    return [round(float(value), 5) for value in values[index]]
