"""Rows that count more than once.

A row with weight 2 and the same row twice are the same data. `merge_rows` gives both the same form: every row once, in
a fixed order, with its total weight. A fit then depends neither on the order of rows nor on how repetition is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.errors import InvalidInputError


def merge_rows(
    x: NDArray[np.float64], y: NDArray[Any], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
    """Every distinct pair of inputs and targets once, sorted, with the sum of its weights.

    Args:
        x: Inputs, (n, columns).
        y: Targets, (n, ...).
        weights: Weights, (n,).
    """
    rows = np.column_stack([x, y.reshape(len(y), -1)])
    order = np.lexsort(rows.T[::-1])
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (rows[order[1:]] != rows[order[:-1]]).any(1)
    starts = np.flatnonzero(is_new)
    return x[order[starts]], y[order[starts]], np.add.reduceat(weights[order], starts)


def repeat_rows(
    x: NDArray[np.float64], y: NDArray[Any], weights: NDArray[np.float64], method: str
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
    """Repeat each row as many times as its weight says, for methods that cannot weigh rows.

    Args:
        x: Rows.
        y: Their targets.
        weights: Whole numbers.
        method: The method's name, for the error about weights that are not whole.
    """
    counts = np.round(weights).astype(np.int64)
    if (counts != weights).any():
        raise InvalidInputError(
            f"the method {method!r} cannot weigh rows: give whole numbers as weights, leave them out, or use another."
        )
    return x.repeat(counts, 0), y.repeat(counts, 0), np.ones(counts.sum())


@dataclass(frozen=True)
class Scaler:
    """Subtracts a mean and divides by a standard deviation.

    Attributes:
        mean: The mean of each column.
        std: The standard deviation of each column.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def learn(cls, x: NDArray[np.float64], weights: NDArray[np.float64]) -> Scaler:
        """The scaler of weighted rows; constant columns keep their scale."""
        mean = np.average(x, axis=0, weights=weights)
        std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
        return cls(mean, np.where(std <= 10 * np.finfo(np.float64).eps * np.abs(mean), 1.0, std))

    def transform(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows in standard deviations from the mean."""
        return (x - self.mean) / self.std
