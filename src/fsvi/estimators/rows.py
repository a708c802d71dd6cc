"""Rows that count more than once.

A row with weight 2 and the same row twice are the same data. `merge_rows` gives both the same form: every row once, in
a fixed order, with its total weight. A fit then depends neither on the order of rows nor on how repetition is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable

Array = NDArray[Any]


def merge_rows(x: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Every distinct pair of inputs and targets once, sorted, with the sum of its weights."""
    rows = np.column_stack([x, y.reshape(len(y), -1)])
    _, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return x[first], y[first], np.bincount(index.reshape(-1), weights)


def repeat_rows(x: Array, y: Array, weights: Array, method: str) -> tuple[Array, Array, Array]:
    """Repeat each row as many times as its weight says, for methods that cannot weigh rows."""
    counts = np.round(weights).astype(np.int64)
    if (counts != weights).any():
        raise InvalidInputError(
            f"the method {method!r} cannot weigh rows: give whole numbers as weights, leave them out, or use another."
        )
    return x.repeat(counts, 0), y.repeat(counts, 0), np.ones(counts.sum())


class Scaler(Configurable):
    """Subtracts each column's mean and divides by its standard deviation."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64)

    @classmethod
    def learn(cls, x: Array, weights: Array) -> Scaler:
        """The scaler of weighted rows; constant columns keep their scale."""
        mean = np.average(x, axis=0, weights=weights)
        std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
        return cls(mean, np.where(std <= 10 * np.finfo(np.float64).eps * np.abs(mean), 1.0, std))

    def transform(self, x: Array) -> Array:
        """Rows in standard deviations from the mean."""
        scaled: Array = (x - self.mean) / self.std
        return scaled
