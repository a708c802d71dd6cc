"""Do new rows look like the training rows? Counts of every column, which stay in the model's file, answer it later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fsvi.diagnosis.findings import Diagnosis, Finding, Level, first
from fsvi.diagnosis.statistics import ALPHA
from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable
from fsvi.validation import check_count

_BINS, _LEVELS = 20, 50
_SMALL = 0.05
"""A shift of so few rows is not worth an alarm, however certain it is."""
_LEAST_OLD, _LEAST_NEW = 40.0, 10.0
"""Training rows and new rows that are expected in a bin."""
_MOST_OUTSIDE = 0.5


class Sketch(Configurable):
    """How often every column had which values in the `num` training rows: at most 50 counts per column.

    Each of `columns` has a `name`; for numbers and dates the ends of the bins, `edges`, from the smallest to the
    largest value; for categories the most frequent `levels`, and how many occurred once, `singles`; and `counts`: of
    the bins or levels, then of all other values, then of missing ones.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]], num: int) -> None:
        self.columns, self.num = [dict(column) for column in columns], check_count("num", num, least=0)
        for column in self.columns:
            values = column["levels"] if "levels" in column else np.asarray(column["edges"], dtype=np.float64)
            counts = np.asarray(column["counts"], dtype=np.float64)
            if counts.shape != (len(values) + 2,) or not (counts >= 0).all():
                raise InvalidInputError(f"the counts of column {column['name']!r} do not fit its values.")
            check_count("singles", column.get("singles", 0), least=0)

    @classmethod
    def learn(cls, encoder: Any, table: Any) -> Sketch:
        """Count the training rows."""
        columns = []
        for column in encoder.columns:
            values = column.parse(table)
            if column.kind == "category":
                found, counts = np.unique([value for value in values.tolist() if value is not None], return_counts=True)
                # Sorted by name: neighbors are put together, and sorting by frequency would favor training.
                levels = np.sort(found[np.argsort(-counts, kind="stable")][:_LEVELS]).tolist()
                sketch = {"levels": levels, "singles": int((counts == 1).sum())}
            else:
                known = values[~np.isnan(values)]
                cuts = np.quantile(known, np.linspace(0, 1, _BINS + 1), method="inverted_cdf") if len(known) else [0.0]
                sketch = {"edges": np.unique(cuts).tolist()}
            counted = _count(sketch, values)
            columns.append({"name": column.name, **sketch, "counts": counted.tolist()})
        return cls(columns, len(table))


class Seen:
    """New rows, counted part by part, next to the training rows."""

    def __init__(self, sketch: Sketch, encoder: Any) -> None:
        self.sketch, self.encoder = sketch, encoder
        self.counts = [np.zeros(len(column["counts"])) for column in sketch.columns]
        self.num = self.num_outside = 0

    def add(self, table: Any) -> None:
        """Count some rows."""
        outside = np.zeros(len(table), dtype=bool)
        for at, (column, sketch) in enumerate(zip(self.encoder.columns, self.sketch.columns, strict=True)):
            values = column.parse(table)
            self.counts[at] += _count(sketch, values)
            outside |= _outside(column, sketch, values)
        self.num += len(table)
        self.num_outside += int(outside.sum())

    def diagnosis(self) -> Diagnosis:
        """Two findings: whether rows lie outside of the training data, and whether columns are distributed as there."""
        if not self.num:
            return Diagnosis(())
        return Diagnosis((self._check_outside(), self._check_columns()), {"rows": float(self.num)})

    def _check_outside(self) -> Finding:
        """Test the number of rows outside.

        The probability of a new value below or above n training values is Beta(2, n − 1); that of a category which
        training had not is about the share of categories that it had once (Good and Turing).
        """
        share = self.num_outside / self.num
        units = sum(column.get("singles", 1) + 1 for column in self.sketch.columns)
        p = float(stats.betabinom.sf(self.num_outside - 1, self.num, units, max(self.sketch.num + 1 - units, 1)))
        expected = min(1.0, units / (self.sketch.num + 1))
        sentence = f"{self.num_outside} of {self.num} rows ({share:.1%}) have a value outside of the training data."
        level: Level = "ok" if p > ALPHA / 2 else "no" if share > _MOST_OUTSIDE else "care"
        return Finding("outside", level, sentence, numbers={"share": share, "expected": expected, "p": p})

    def _check_columns(self) -> Finding:
        """Two-sample tests of all columns, corrected for their number; the shift is the share of rows that differ."""
        found = []
        for sketch, new in zip(self.sketch.columns, self.counts, strict=True):
            old = np.asarray(sketch["counts"])
            p, shift = _compare(old, new)
            found.append((sketch["name"], min(1.0, p * len(self.counts)), shift))
        alarming = sorted((each for each in found if each[1] <= ALPHA / 2 and each[2] >= _SMALL), key=lambda e: -e[2])
        shifted = first([f"{name!r} ({shift:.0%} of rows)" for name, _, shift in alarming])
        rate = f"a false alarm in at most {ALPHA:.0%} of checks"
        numbers = {"columns": float(len(alarming)), "p": min(each[1] for each in found)}
        numbers |= {"shift": max(each[2] for each in found)}
        if not alarming:
            sentence = f"All {len(found)} columns are distributed as in training, or nearly so ({rate})."
            return Finding("drift", "ok", sentence, numbers=numbers)
        sentence = f"{len(alarming)} of {len(found)} columns have shifted since training: {shifted} ({rate})."
        advice = "Check the model on new rows with targets, calibrate it on them, or train it again."
        return Finding("drift", "care", sentence, advice, numbers)


def _count(sketch: Mapping[str, Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Counts of bins or levels, of all other values, and of missing ones."""
    if "levels" in sketch:
        index = {level: at for at, level in enumerate(sketch["levels"])}
        other = len(index)
        places = np.array([other + 1 if v is None else index.get(v, other) for v in values.tolist()], dtype=np.int64)
        return np.bincount(places, minlength=other + 2).astype(float)
    edges = np.asarray(sketch["edges"])
    places = np.searchsorted(edges, values, side="left")  # bin k holds (edge k−1, edge k]
    places[np.isnan(values)] = len(edges) + 1
    return np.bincount(places, minlength=len(edges) + 2).astype(float)


def _outside(column: Any, sketch: Mapping[str, Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Numbers below or above all training rows, and categories that none of them had."""
    if column.kind == "category":
        known = {None, *column.levels, *column.rare}
        return np.array([value not in known for value in values.tolist()], dtype=bool)
    beyond: NDArray[np.bool_] = (values < sketch["edges"][0]) | (values > sketch["edges"][-1])
    return beyond


def _compare(old: NDArray[np.float64], new: NDArray[np.float64]) -> tuple[float, float]:
    """The p-value of "both come from one distribution", and the share of rows that differ.

    χ² sees every kind of change; mean ranks see that values have become larger or smaller, even by little. Neighbors
    with few counts are put together, until the approximations hold.
    """
    old, new = _merged(old, new)
    if len(old) < 2:
        return 1.0, 0.0
    both = old + new
    ranks = np.cumsum(both) - both / 2
    spread = np.average((ranks - both.sum() / 2) ** 2, weights=both)
    moved = np.average(ranks, weights=new) - np.average(ranks, weights=old)
    z = moved / np.sqrt(spread * (1 / old.sum() + 1 / new.sum()))
    p = 2 * min(stats.chi2_contingency([old, new], correction=False).pvalue, 2 * stats.norm.sf(abs(z)))
    return min(1.0, float(p)), 0.5 * float(np.abs(old / old.sum() - new / new.sum()).sum())


def _merged(old: NDArray[np.float64], new: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    needed = max(_LEAST_OLD / old.sum(), _LEAST_NEW / new.sum())
    shares = np.cumsum(old + new) / (old.sum() + new.sum())
    starts, reached = [0], 0.0
    for at, share in enumerate(shares[:-1], start=1):
        if share - reached >= needed and 1 - share >= needed:
            starts.append(at)
            reached = share
    return np.add.reduceat(old, starts), np.add.reduceat(new, starts)
