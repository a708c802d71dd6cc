"""How each column becomes numbers, learned on training rows and the same ever after.

Missing values are replaced: numbers and dates by the training median, next to a column that says where; in columns of
categories they are a category of their own. Categories become one column each, with 1 where the row has that category.
A category that training never saw has 1 in a further column, which is 0 in all training rows. That is outside of what
any of them had, so that a model which is unsure outside of the data is unsure about it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable
from fsvi.tables.cells import UNITS, all_numbers, as_number, date_format, days, parse_date
from fsvi.tables.table import Table, label

MOST_CATEGORIES = 64
"""The most frequent categories have columns of their own; all others of the training rows share one."""
_FEW = 30
"""Up to so many different strings are categories, however few the rows."""
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
"""Lengths in days of what a date may follow."""


class Column(Configurable, ABC):
    """A column of a table and how it becomes numbers."""

    kind: ClassVar[str]
    """What the column holds, as a word"""
    name: str
    has_missing: bool

    @classmethod
    @abstractmethod
    def learn(cls, name: str, table: Table, weights: NDArray[np.float64]) -> Column:
        """Learn from a column of training rows, each of which counts as many times as its weight."""

    @abstractmethod
    def parse(self, table: Table) -> NDArray[Any]:
        """The values in the column's own type; an error names the first value of another type, and its line."""

    @abstractmethod
    def encode(self, values: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """The columns of numbers that parsed values become, by name; all finite."""

    def surprises(self, values: NDArray[Any]) -> list[str]:
        """What is unlike training in parsed values, in sentences; the model predicts all the same."""
        count = int(missing(values).sum())
        if not count or self.has_missing:
            return []
        return [f"Column {self.name!r} lacks {count} of {len(values)} values, though no training row lacked any."]


class NumberColumn(Column):
    """Numbers; `middle`, the training median, replaces missing ones, next to an output that says where."""

    kind = "number"

    def __init__(self, name: str, middle: float, has_missing: bool) -> None:
        self.name, self.middle, self.has_missing = name, middle, has_missing

    @classmethod
    def learn(cls, name: str, table: Table, weights: NDArray[np.float64]) -> NumberColumn:
        """Take the weighted median."""
        numbers = as_numbers(name, table)
        return cls(name, _median(numbers, weights), bool(np.isnan(numbers).any()))

    def parse(self, table: Table) -> NDArray[np.float64]:
        """Numbers, NaN where there is none."""
        return as_numbers(self.name, table)

    def encode(self, values: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """The numbers with the median in gaps, and where these are."""
        gaps = np.isnan(values)
        encoded = {self.name: np.where(gaps, self.middle, values)}
        return {**encoded, f"{self.name} missing": gaps.astype(float)} if self.has_missing else encoded


class DateColumn(Column):
    """Dates and times: days since 1970, and where in the year, the week and the day they lie, as points on a circle.

    `form` is the format of dates in text, such as "%Y-%m-%d"; `middle` the median in days, which replaces missing
    dates; `cycles` are those of "year", "week" and "day" that the training rows went through.
    """

    kind = "date"

    def __init__(self, name: str, form: str | None, middle: float, has_missing: bool, cycles: Sequence[str]) -> None:
        self.name, self.form, self.middle, self.has_missing = name, form, middle, has_missing
        self.cycles = list(cycles)

    @classmethod
    def learn(cls, name: str, table: Table, weights: NDArray[np.float64]) -> DateColumn:
        """Find the format, the median and the cycles."""
        values, form = table.columns[name], None
        if values.dtype.kind == "O":
            form = date_format(sorted({value for value in values if value is not None}))
            if form is None:
                raise InvalidInputError(
                    f"column {name!r} cannot be read as dates: write them as 2024-03-31, or make it another type."
                )
        numbers = _as_days(name, table, form)
        known = numbers[~np.isnan(numbers)]
        span = np.ptp(known) if len(known) else 0.0
        went = {"year": span > 31, "week": span > 1, "day": bool((known % 1 != 0).any())}
        return cls(name, form, _median(numbers, weights), len(known) < len(numbers), [c for c in _CYCLES if went[c]])

    def parse(self, table: Table) -> NDArray[np.float64]:
        """Days since 1970, NaN where there is no date."""
        return _as_days(self.name, table, self.form)

    def encode(self, values: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Days with the median in gaps, two coordinates for each cycle, and where the gaps are."""
        gaps = np.isnan(values)
        filled = np.where(gaps, self.middle, values)
        encoded = {f"{self.name} days": filled}
        for cycle in self.cycles:
            angle = 2 * np.pi * filled / _CYCLES[cycle]
            encoded[f"{self.name} sine of {cycle}"] = np.sin(angle)
            encoded[f"{self.name} cosine of {cycle}"] = np.cos(angle)
        return {**encoded, f"{self.name} missing": gaps.astype(float)} if self.has_missing else encoded


class CategoryColumn(Column):
    """Categories, also yes and no: `levels` have an output each, the most frequent first; `rare` ones share one."""

    kind = "category"

    def __init__(self, name: str, levels: Sequence[str], rare: Sequence[str], has_missing: bool) -> None:
        self.name, self.levels, self.rare, self.has_missing = name, list(levels), list(rare), has_missing
        if not all(isinstance(level, str) for level in (*self.levels, *self.rare)):
            raise InvalidInputError(f"column {name!r} has a category that is not text.")
        if len(self.levels) > MOST_CATEGORIES:
            raise InvalidInputError(f"column {name!r} has {len(self.levels)} levels: at most {MOST_CATEGORIES} can be.")
        self._index = {level: index for index, level in enumerate(self.levels)}
        self._index |= dict.fromkeys(self.rare, len(self.levels))

    @classmethod
    def learn(cls, name: str, table: Table, weights: NDArray[np.float64]) -> CategoryColumn:
        """Count the categories."""
        labels = _as_labels(table.columns[name]).tolist()
        counts: dict[str, float] = defaultdict(float)
        for value, weight in zip(labels, weights.tolist(), strict=True):
            counts[value] += weight
        has_missing = counts.pop(None, None) is not None  # type: ignore[call-overload]
        ranked = sorted(counts, key=lambda level: (-counts[level], level))
        return cls(name, ranked[:MOST_CATEGORIES], sorted(ranked[MOST_CATEGORIES:]), has_missing)

    def parse(self, table: Table) -> NDArray[Any]:
        """Strings, None where there is none."""
        return _as_labels(table.columns[self.name])

    def encode(self, values: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """1 in the column of the row's category, the last one for a category never seen, and 0 in the others."""
        names = [f"{self.name}={level}" for level in self.levels]
        names += [f"{self.name} rare"] if self.rare else []
        names += [f"{self.name} missing"] if self.has_missing else []
        names += [f"{self.name} never seen"]
        unseen = len(names) - 1
        index: dict[Any, int] = {**self._index, None: unseen - 1} if self.has_missing else dict(self._index)
        encoded = np.eye(len(names))[[index.get(value, unseen) for value in values.tolist()]]
        return dict(zip(names, encoded.T, strict=True))

    def surprises(self, values: NDArray[Any]) -> list[str]:
        """Missing values, and categories that training never saw."""
        known = {*self._index, None}
        if known.issuperset(values.tolist()):
            return super().surprises(values)
        unseen = [value for value in values.tolist() if value not in known]
        near = get_close_matches(unseen[0], self._index, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        found = f"Column {self.name!r} has {len(unseen)} of {len(values)} values that no training row had, such as "
        return [*super().surprises(values), f"{found}{unseen[0]!r}{hint}."]


def as_numbers(name: str, table: Table) -> NDArray[np.float64]:
    """A column as numbers, NaN where there is none; an error names the first that is something else."""
    values = table.columns[name]
    if values.dtype.kind == "M":
        raise InvalidInputError(f"column {name!r} holds dates where numbers are expected.")
    try:
        numbers = values.astype(np.float64, copy=False)
    except ValueError:  # currencies, percents, or something else
        cells = [None if value is None else as_number(value) for value in values.tolist()]
        _check_cells(name, table, cells, "a number")
        numbers = np.array(cells, dtype=np.float64)
    if np.isinf(numbers).any():
        raise InvalidInputError(f"column {name!r} holds infinite values: drop those rows, or leave the cells empty.")
    return numbers


def missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a column of any type has no value."""
    if values.dtype.kind == "O":
        return np.array([value is None for value in values.tolist()], dtype=bool)
    gaps: NDArray[np.bool_] = values != values
    return gaps


def _as_days(name: str, table: Table, form: str | None) -> NDArray[np.float64]:
    values = table.columns[name]
    if values.dtype.kind == "M":
        return days(values)
    if values.dtype.kind != "O":
        if np.isnan(values).all():
            return values
        raise InvalidInputError(f"column {name!r} holds numbers where dates are expected.")
    form = form or "%Y-%m-%d"
    moments = [None if value is None else parse_date(value, form) for value in values.tolist()]
    example = np.datetime64("2024-03-31").astype(object).strftime(form)
    _check_cells(name, table, moments, f"a date such as {example}")
    return days(np.array(moments, dtype="datetime64[us]"))


def _as_labels(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "O":
        return values
    labels = np.empty(len(values), dtype=object)
    cells = values.astype(str).tolist() if values.dtype.kind == "M" else map(label, values.tolist())
    labels[:] = [None if value != value else cell for value, cell in zip(values, cells, strict=True)]
    return labels


def _check_cells(name: str, table: Table, parsed: Sequence[Any], wanted: str) -> None:
    for value, line, found in zip(table.columns[name].tolist(), table.lines.tolist(), parsed, strict=True):
        if value is not None and found is None:
            raise InvalidInputError(f"column {name!r} has {value!r} in line {line}, where {wanted} is expected.")


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The lower weighted median of what is not missing; zero if everything is."""
    known = ~np.isnan(values)
    if not known.any():
        return 0.0
    values, weights = values[known], weights[known]
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])


def detect_kind(values: NDArray[Any], read_numbers: bool = False) -> str:
    """The kind of a column: "number", "date", "category", or "text" if nearly every row has another string.

    Strings count as numbers if `read_numbers` says so: in a CSV file everything is a string.
    """
    if values.dtype.kind == "f":
        return "number"
    if values.dtype.kind == "M":
        return "date"
    known = [value for value in values.tolist() if value is not None]
    distinct = set(known)
    has_units = any(mark in str(cell) for cell in distinct for mark in UNITS)
    if (read_numbers or has_units or not known) and all_numbers(distinct):
        return "number"
    if date_format(sorted(distinct)) is not None:
        return "date"
    return "text" if len(distinct) > _FEW and 2 * len(distinct) > len(known) else "category"
