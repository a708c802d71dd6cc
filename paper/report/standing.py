"""Where FSVI stands: what it wins, ties and loses against every other method, in standard errors.

Two methods are compared by every measure of a task that has a better direction, at the most complete profile that both
were run with. If both were run with the same seeds, the differences are paired, since a seed also determines the split
of the data. A win or a loss is a difference whose 95% confidence interval leaves out zero, by Student's t: few seeds
say little about their own spread, so they need more standard errors. One seed alone only says who is ahead. If FSVI was
run with several contexts, the one with the most seeds counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paper.columns import Column, MeanOverSeeds
from paper.report.tables import FilledSection, Table, TableRow
from paper.tasks.registry import TASKS

CONFIDENCE = 0.95
"""The confidence with which a difference must not be zero to be a win or a loss."""

Verdict: TypeAlias = Literal["win", "tie", "loss", "ahead", "even", "behind"]
"""The last three are those of comparisons without a standard error."""

_FSVI = ("fsvi", "s-fsvi")
"""FSVI, and its form for tasks that come one after the other."""
_MEANINGLESS = "smoke"
"""The profile whose numbers mean nothing."""


@dataclass(frozen=True)
class Comparison:
    """FSVI and another method by one measure.

    Attributes:
        column: The measure.
        profile: The profile of both.
        fsvi: FSVI's row.
        other: The other method's row.
        means: FSVI's mean, and the other's.
        gain: By how much FSVI is better, in the measure's unit; negative if it is worse.
        error: The standard error of the gain; None if one of them has a single seed.
        seeds: The number of seeds; of two numbers, the smaller, which makes the confidence at least as high as stated.
    """

    column: Column
    profile: str
    fsvi: TableRow
    other: TableRow
    means: tuple[MeanOverSeeds, MeanOverSeeds]
    gain: float
    error: float | None
    seeds: int

    @property
    def errors(self) -> float | None:
        """The gain in standard errors; None without a standard error."""
        if self.error is None:
            return None
        return self.gain / self.error if self.error else math.copysign(math.inf, self.gain) if self.gain else 0.0

    @property
    def verdict(self) -> Verdict:
        """Won, tied or lost by `decisive_errors`; for a single seed, who is ahead by the digits shown."""
        if self.errors is None:
            shown = self.column.rounded(self.gain)
            return "even" if not shown else "ahead" if shown > 0 else "behind"
        return "tie" if abs(self.errors) < decisive_errors(self.seeds) else "win" if self.errors > 0 else "loss"


def decisive_errors(seeds: int) -> float:
    """The number of standard errors, estimated from this many seeds, that makes a win or a loss."""
    from scipy.special import stdtrit  # here, because its import takes long

    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Standing:
    """FSVI against one other method.

    Attributes:
        label: The other method, as in results.
        by_section: The comparisons by section of the report; sections without any are left out.
    """

    label: str
    by_section: Mapping[str, Sequence[Comparison]]

    @property
    def comparisons(self) -> list[Comparison]:
        """All comparisons."""
        return [each for group in self.by_section.values() for each in group]


def count_verdicts(comparisons: Iterable[Comparison]) -> Counter[Verdict]:
    """How many comparisons have each verdict."""
    return Counter(each.verdict for each in comparisons)


def build_standings(sections: Sequence[FilledSection]) -> list[Standing]:
    """One standing per method that was run where FSVI was; those with the most comparisons first."""
    found: dict[str, dict[str, dict[Column, Comparison]]] = {}
    for section in sections:
        tables = [table for part in section.parts for table in part.tables if table.profile != _MEANINGLESS]
        for comparison in (each for table in tables for each in _compare(table)):
            method = found.setdefault(comparison.other.label, {}).setdefault(section.title, {})
            method.setdefault(comparison.column, comparison)  # profiles are in order: the most complete comes first
    standings = [
        Standing(label, {title: list(group.values()) for title, group in of.items()}) for label, of in found.items()
    ]
    return sorted(standings, key=lambda each: -len(each.comparisons))


def _compare(table: Table) -> Iterable[Comparison]:
    fsvi = _reference(table)
    if fsvi is None:
        return
    for other in table.rows:
        if not other.results or _is_fsvi(other):
            continue
        for column in table.columns:
            comparison = compare(column, table.profile, fsvi, other)
            if comparison is not None:
                yield comparison


def _reference(table: Table) -> TableRow | None:
    """FSVI with the context that has the most seeds; of several, the task's default, or the first by name."""
    rows = [row for row in table.rows if row.results and row.results[0].method in _FSVI]
    task = TASKS.get(table.layout.tasks[0])
    default = None if task is None else task.context
    return min(rows, key=lambda row: (-len(row.results), row.results[0].context != default, row.label), default=None)


def _is_fsvi(row: TableRow) -> bool:
    return row.results[0].method.removeprefix("ensemble:") in _FSVI


def compare(column: Column, profile: str, fsvi: TableRow, other: TableRow) -> Comparison | None:
    """Two rows by one measure; None if one of them lacks it or neither direction is better."""
    ours, theirs = _by_seed(column, fsvi), _by_seed(column, other)
    if not ours or not theirs or not column.better:
        return None
    means = MeanOverSeeds.of(list(ours.values())), MeanOverSeeds.of(list(theirs.values()))
    sign = 1.0 if column.better == "higher" else -1.0
    gain = sign * (means[0].mean - means[1].mean)
    if ours.keys() == theirs.keys():
        error = MeanOverSeeds.of([ours[seed] - theirs[seed] for seed in ours]).error
    elif means[0].error is None or means[1].error is None:
        error = None
    else:
        error = math.hypot(means[0].error, means[1].error)
    seeds = min(len(ours), len(theirs))
    return Comparison(column, profile, fsvi, other, means, gain, error, seeds) if math.isfinite(gain) else None


def _by_seed(column: Column, row: TableRow) -> dict[int, float]:
    values = {result.seed: column.value(result) for result in row.results if result.task == column.task}
    return {seed: value for seed, value in values.items() if value is not None}
