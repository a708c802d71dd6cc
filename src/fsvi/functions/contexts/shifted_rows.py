"""A context for tables: training rows, moved away from the data in the ways in which tables leave it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import Context
from fsvi.inputs import describe_inputs, example_shape
from fsvi.networks.devices import moved
from fsvi.validation import check_fraction, check_positive

_FEW = 0.25
"""Up to this share of the columns, or one column, a shift is one of few columns."""
_ALONE, _TOGETHER = 0.4, 0.4
"""Shares of the points in which one column moves, and in which all do; in the others, a random subset does."""
_NO_CATEGORY = 0.5
"""How often a group of category columns that should move alone shows no category, and not a value out of range."""
_MOST = 100_000
"""The most training rows whose distances are sorted."""
_NEW = 0.99
"""Recombined rows count as new if they lie farther out than this share of the training rows."""
_RIDGE = 1e-3
"""Added to the columns' correlations, which are singular where columns depend on each other."""


class ShiftedRows(Context):
    """Rows of the minibatch with some columns pushed away from the data; the default of the estimators.

    It covers the ways in which tables leave their training data in practice:

    - one column breaks (40% of the points): a single column moves by `smallest_alone` to `largest` standard deviations;
    - all columns drift (40%), or a random subset of them does (20%): half of the time in the same direction, half of
      the time each in its own, by `smallest` to `largest` standard deviations. Small shifts are more likely than large
      ones. A random subset of at most a quarter of the columns moves as far as a single column;
    - the combination is new (`recombined` of the points): every column keeps its own distribution, but its value comes
      from another row. Where columns are nearly independent such rows look like the data, so only rows are used whose
      Mahalanobis distance is larger than that of 99% of the training rows; the others are shifted instead.

    Columns with two values (flags) move out of range like others, since a shift of all columns includes them. They are
    not flipped: the other value is usual. Columns of a one-hot group are found by themselves: neighboring columns with
    two values, exactly one of them high in each row. When such a group should move alone, half of the time it shows
    no category at all, which is how a category that training has never seen is encoded. Counts move like other numbers.

    It does not cover columns that are constant in training (their scale is unknown, so they stay as they are), shifts
    of less than `smallest` standard deviations, nonlinear dependencies between columns that keep their correlations,
    or images and sequences. Before `prepare` has seen training rows it takes scales from the minibatch.

    Args:
        smallest: The smallest shift of many columns, in standard deviations of each column.
        smallest_alone: The smallest shift of few columns. A column alone must move farther to be outside of the data.
        largest: The largest shift. Beyond, predictions are extrapolated.
        recombined: Share of the points whose values come from different rows.
        groups: Columns of each one-hot group, as lists of column numbers; None finds them in the training rows.
    """

    def __init__(
        self,
        smallest: float = 3.0,
        smallest_alone: float = 4.0,
        largest: float = 10.0,
        recombined: float = 0.1,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.smallest = check_positive("smallest", smallest, zero=True)
        self.smallest_alone = check_positive("smallest_alone", smallest_alone, zero=True)
        self.largest = check_positive("largest", largest)
        if largest < max(smallest, smallest_alone):
            raise InvalidInputError(
                f"largest={largest} must not be less than smallest={smallest} and smallest_alone={smallest_alone}."
            )
        self.recombined = check_fraction("recombined", recombined)
        self.groups = None if groups is None else [list(group) for group in groups]
        self._scales: _Scales | None = None

    def prepare(self, x: Tensor) -> None:
        """Learn each column's scale, the one-hot groups, and how far out training rows lie."""
        self._scales = _Scales(x, self.groups)

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """Rows of the minibatch, each moved in one of the ways above."""
        if self._scales is None or self._scales.std.shape != example_shape(batch):
            self.prepare(batch)
        assert self._scales is not None
        scales = self._scales.to(batch)
        rows = batch[torch.randint(len(batch), (num,), device=batch.device)]
        points = rows + self._shifts(num, scales)
        points = _without_category(points, rows, scales)
        return self._recombine(points, batch, scales)

    def _shifts(self, num: int, scales: _Scales) -> Tensor:
        """What is added to each value, zero where a column stays."""
        like = scales.std
        columns = len(like)
        moves, alone = _choose_columns(num, scales)
        same = torch.rand(num, 1, device=like.device) < 0.5
        signs = torch.randint(2, (num, columns), device=like.device) * 2 - 1
        signs = torch.where(same, signs[:, :1], signs)
        few = alone | (moves.sum(1, keepdim=True) <= _FEW * columns)
        least = torch.where(few, self.smallest_alone, self.smallest)
        sizes = least + (self.largest - least) * torch.rand(num, 1, device=like.device).square()
        return (moves * signs * sizes).to(like) * like

    def _recombine(self, points: Tensor, batch: Tensor, scales: _Scales) -> Tensor:
        """Replace some points by rows of mixed origin, where these are new."""
        num = round(self.recombined * len(points))
        if num == 0 or len(batch) < 2:
            return points
        index = torch.randint(len(batch), (num, len(scales.std)), device=batch.device)
        for group in scales.group_columns:
            index[:, group] = index[:, group[:1]]
        mixed = batch.gather(0, index)
        is_new = scales.distance(mixed) > scales.threshold
        return torch.cat([torch.where(is_new[:, None], mixed, points[:num]), points[num:]])


class _Scales:
    """What `ShiftedRows` knows of the training rows: no row itself is kept."""

    def __init__(self, x: Tensor, groups: Sequence[Sequence[int]] | None) -> None:
        if not isinstance(x, Tensor) or x.dim() != 2:
            raise InvalidInputError(
                f"ShiftedRows needs a table (rows, columns), not inputs of {describe_inputs(x)}: for images use "
                "fsvi.contexts.Monochrome or Corrupted."
            )
        self.mean, self.std = x.mean(0), x.std(0, correction=0)
        # Rounding leaves a constant column with a tiny deviation, by which nothing must be divided.
        self.std = torch.where(self.std > 1e-6 * x.abs().amax(0), self.std, torch.zeros_like(self.std))
        self.groups = _find_groups(x) if groups is None else [list(group) for group in groups]
        if any(not 0 <= column < x.shape[1] for group in self.groups for column in group):
            raise InvalidInputError(f"groups={self.groups} names columns that a table with {x.shape[1]} does not have.")
        self.group_columns = [moved(torch.tensor(group), x.device) for group in self.groups]
        self.low = x.amin(0)
        moving = self.std.nonzero()[:, 0]
        self.units = moving if len(moving) else moving.new_zeros(1)
        """Columns that may move alone."""
        self.whitening = self._whitening(x)
        self.threshold = self.distance(x[:_MOST]).quantile(_NEW)

    def to(self, batch: Tensor) -> _Scales:
        """The same on the minibatch's device and in its floating type."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(batch.device if name == "units" else batch))  # units are integers
        self.group_columns = [moved(columns, batch.device) for columns in self.group_columns]
        return self

    def distance(self, x: Tensor) -> Tensor:
        """The Mahalanobis distance of each row from the mean, up to the ridge."""
        return ((x - self.mean) @ self.whitening).norm(dim=1)

    def _whitening(self, x: Tensor) -> Tensor:
        """W, (columns, columns): (x − mean) W has no correlations, and its norm is the Mahalanobis distance.

        Constant columns do not count.
        """
        scale = torch.where(self.std > 0, 1 / self.std, torch.zeros_like(self.std))
        standardized = ((x - self.mean) * scale).double()
        roots, vectors = torch.linalg.eigh(standardized.T @ standardized / len(x))
        return (scale[:, None].double() * vectors / (roots.clamp_min(0) + _RIDGE).sqrt()).to(x)


def _choose_columns(num: int, scales: _Scales) -> tuple[Tensor, Tensor]:
    """Which columns move in each point, (num, columns), and whether a column moves alone, (num, 1)."""
    columns, device = len(scales.std), scales.std.device
    kind = torch.rand(num, 1, device=device)
    alone = kind < _ALONE
    chosen = scales.units[torch.randint(len(scales.units), (num, 1), device=device)]
    single = torch.zeros(num, columns, dtype=torch.bool, device=device).scatter_(1, chosen, True)
    share = torch.where(kind < _ALONE + _TOGETHER, 1.0, torch.rand(num, 1, device=device))
    return torch.where(alone, single, torch.rand(num, columns, device=device) < share), alone


def _without_category(points: Tensor, rows: Tensor, scales: _Scales) -> Tensor:
    """Half of the points in which one column of a group moves alone show no category of that group instead."""
    for group in scales.group_columns:
        changed = (points != rows).sum(1)
        alone = (changed == 1) & (points[:, group] != rows[:, group]).any(1)
        chosen = alone & (torch.rand(len(points), device=points.device) < _NO_CATEGORY)
        points[:, group] = torch.where(chosen[:, None], scales.low[group], points[:, group])
    return points


def _find_groups(x: Tensor) -> list[list[int]]:
    """One-hot groups: neighboring columns with two values each, exactly one of them high in each row."""
    low, high = x.amin(0), x.amax(0)
    two_valued = ((x == low) | (x == high)).all(0) & (low < high)
    is_high = (x == high) & two_valued
    counts = is_high.to(torch.int32)
    groups: list[list[int]] = []
    start = 0
    while start < x.shape[1]:
        stop = _end_of_group(counts, two_valued, start)
        if stop - start > 1:
            groups.append(list(range(start, stop)))
        start = max(stop, start + 1)
    return groups


def _end_of_group(counts: Tensor, two_valued: Tensor, start: int) -> int:
    """Where the one-hot group that begins at column `start` ends; `start` itself if there is none."""
    total = torch.zeros(len(counts), dtype=torch.int32, device=counts.device)
    for column in range(start, counts.shape[1]):
        if not bool(two_valued[column]):
            break
        total = total + counts[:, column]
        if bool((total > 1).any()):
            break
        if bool((total == 1).all()):
            return column + 1
    return start
