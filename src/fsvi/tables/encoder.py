"""A whole table as numbers for a network, and what does not fit in a new table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable
from fsvi.tables.columns import CategoryColumn, Column, DateColumn, NumberColumn, detect_kind
from fsvi.tables.table import Table
from fsvi.validation import check_choice

KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (NumberColumn, CategoryColumn, DateColumn)}
"""Classes of columns by what they hold."""


class TableEncoder(Configurable):
    """Turns the rows of a table into numbers: the same columns in the same order, whatever a new table looks like.

    Args:
        columns: How each column becomes numbers.
        left_out: Further columns that training had and the model does not use: pairs of a name and the reason.
    """

    def __init__(self, columns: Sequence[Column], left_out: Sequence[Sequence[str]] = ()) -> None:
        self.columns, self.left_out = list(columns), [(name, reason) for name, reason in left_out]

    @classmethod
    def learn(
        cls,
        table: Table,
        kinds: Mapping[str, str] | None = None,
        weights: NDArray[Any] | None = None,
    ) -> TableEncoder:
        """Learn from training rows.

        Args:
            table: The rows.
            kinds: What columns hold, "number", "category" or "date", where it should not be detected; "ignore" leaves a
                column out.
            weights: How many times each row counts; 1 without them.
        """
        weights = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
        given = dict(kinds or {})
        for name, kind in given.items():
            check_choice(f"type of column {name!r}", kind, (*KINDS, "ignore"))
            check_choice("column", name, table.names)
        columns: list[Column] = []
        left_out: list[tuple[str, str]] = []
        for name, values in table.columns.items():
            kind = given.get(name) or detect_kind(values)
            if kind in KINDS:
                columns.append(KINDS[kind].learn(name, table, weights))
            elif kind == "ignore":
                left_out.append((name, "ignored on request"))
            else:
                distinct = len(set(values.tolist()) - {None})
                left_out.append((name, f"text: {distinct} different values in {len(values)} rows"))
        if not columns:
            said = "; ".join(f"{name!r} was left out ({reason})" for name, reason in left_out) or "there is no other"
            raise InvalidInputError(f"no column is left to learn from: {said}.")
        return cls(columns, left_out)

    @property
    def names(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def outputs(self) -> list[str]:
        """Names of the columns of numbers."""
        nothing = Table(dict.fromkeys(self.names, np.empty(0, dtype=object)), np.arange(0))
        return [name for column in self.columns for name in column.encode(column.parse(nothing))]

    def check_names(self, names: Collection[str]) -> list[str]:
        """Refuse a table that lacks columns, suggesting the nearest; return the names that the model does not know."""
        absent = [name for name in self.names if name not in names]
        unknown = [name for name in names if name not in self.names and name not in dict(self.left_out)]
        if absent:
            near = [(name, nearest(name, unknown)) for name in absent]
            found = [repr(name) if match is None else f"{name!r} (is it {match!r}?)" for name, match in near]
            raise InvalidInputError(f"the model needs columns that are missing: {', '.join(found)}.")
        return unknown

    def transform(self, table: Table) -> NDArray[np.float64]:
        """Numbers (rows, outputs), all finite."""
        return self.examine(table)[0]

    def examine(self, table: Table) -> tuple[NDArray[np.float64], list[str]]:
        """Numbers, and sentences about what is unlike training."""
        self.check_names(table.names)
        encoded: list[NDArray[np.float64]] = []
        surprises: list[str] = []
        for column in self.columns:
            values = column.parse(table)
            encoded += column.encode(values).values()
            surprises += column.surprises(values)
        return np.stack(encoded, 1), surprises


def nearest(name: str, names: Collection[str]) -> str | None:
    """The most similar name, also if one is part of the other; None if none is similar."""
    by_lower = {other.lower(): other for other in names}
    close = get_close_matches(name.lower(), by_lower, n=1)
    close += [other for other in by_lower if name.lower() in other or other in name.lower()]
    return by_lower[close[0]] if close else None
