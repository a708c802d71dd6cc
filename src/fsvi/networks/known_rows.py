"""How far rows of a table lie from the training rows: in each column, in combination, and from their neighbors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

_KNOTS = 65
"""Quantiles of each column that are kept."""
_TAIL = 0.05
"""The share of the rows, at each end of a column, that tells how fast its tail falls."""
_STEEPEST = 0.25
"""Outside of the training values, a normal score grows by one within this many standard deviations at the least."""
_RIDGE = 1e-3
"""Added to the columns' correlations, which are singular where columns depend on each other."""
_MOST_COLUMNS = 500
"""Tables with more columns are not whitened, which costs a product with columns² numbers."""
_MOST_NEIGHBORS = 256
"""Training rows that are kept to measure distances from, at most."""
_NEAREST = 2
"""Which of the nearest neighbors counts: one row alone does not make its surroundings known."""
_FOLDS, _MOST_ROWS = 5, 5_000
"""Parts into which rows are divided to judge each as if it were new, and the rows for which this is done, at most."""
_LEFT_OUT, _BEYOND = 0.02, 2.0
"""The share of new rows that limits leave out, before they are multiplied; and by how much a normal score may exceed
those of the training rows at the most: columns that are nearly constant have scores without bound."""


class NormalScores(nn.Module):
    """A monotone map of each column to normal scores, learned from quantiles.

    A value with a share p of the training values below it becomes the p-quantile of the standard normal distribution;
    of values that occur often, the middle. Outside of the training values, scores grow linearly: if the tail falls like
    exp(−x/s), where s is its mean excess, the score at the end z grows by 1/(s z) per unit. In a Gaussian column this
    is about one per standard deviation, in a column with heavy tails less.

    Args:
        in_features: Number of columns.
    """

    knots: Tensor
    """Training values of each column at evenly spaced scores from −end to end, (columns, knots)."""
    below: Tensor
    """How far below the smallest training value the score is one less, (columns,)."""
    above: Tensor
    """How far above the largest training value the score is one more, (columns,)."""
    end: Tensor
    """The score of the largest training value."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, _KNOTS).repeat(in_features, 1))
        self.register_buffer("below", torch.ones(in_features))
        self.register_buffer("above", torch.ones(in_features))
        self.register_buffer("end", torch.tensor(2.0))

    def see(self, x: Tensor) -> None:
        """Learn the quantiles and tails of training rows `x`."""
        num, ordered = len(x), x.sort(0).values
        end = float(torch.special.ndtri(torch.tensor(1 - 0.5 / max(num, 2), dtype=torch.float64)))
        places = torch.special.ndtr(torch.linspace(-end, end, _KNOTS, dtype=torch.float64, device=x.device)) * num - 0.5
        self.knots.copy_(ordered[places.round().long().clamp(0, num - 1)].T)
        self.end.fill_(end)
        tail = min(max(2, math.ceil(_TAIL * num)), num - 1)
        least = _STEEPEST * standard_deviations(x)
        self.below.copy_(torch.maximum((ordered[tail] - ordered[: tail + 1]).sum(0) / max(tail, 1) * end, least))
        excess = ordered[num - tail - 1 :] - ordered[num - tail - 1]
        self.above.copy_(torch.maximum(excess.sum(0) / max(tail, 1) * end, least))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of rows (n, columns)."""
        values = x.T.contiguous()
        inside = (self._interpolate(values, right=False) + self._interpolate(values, right=True)) / 2
        beyond = (x - self.knots[:, -1]).clamp_min(0) / self.above - (self.knots[:, 0] - x).clamp_min(0) / self.below
        return inside.T + beyond

    def values(self, score: Tensor) -> Tensor:
        """The value of each column that has a given score."""
        place = ((score / self.end).clamp(-1, 1) + 1) * (_KNOTS - 1) / 2
        lower = place.floor().long().clamp_max(_KNOTS - 2)
        inside = torch.lerp(self.knots[:, lower], self.knots[:, lower + 1], place - lower)
        return inside + (score - self.end).clamp_min(0) * self.above - (-self.end - score).clamp_min(0) * self.below

    def gaps(self, x: Tensor) -> Tensor:
        """The distance of each value from the nearest knot, with the sign of its side; of values beyond, zero."""
        values = x.T.contiguous()
        index = torch.searchsorted(self.knots, values).clamp(1, _KNOTS - 1)
        above, below = self.knots.gather(1, index) - values, values - self.knots.gather(1, index - 1)
        return torch.where(above < below, -above.clamp_min(0), below.clamp_min(0)).T

    def _interpolate(self, values: Tensor, right: bool) -> Tensor:
        """Scores by linear interpolation; where knots are equal, the lowest score or the highest, `right`."""
        index = torch.searchsorted(self.knots, values, right=right).clamp(1, _KNOTS - 1)
        low, high = self.knots.gather(1, index - 1), self.knots.gather(1, index)
        gap = high - low
        tied = torch.where(values == low, float(right), (values > low).to(values))
        share = torch.where(gap > 0, (values - low) / torch.where(gap > 0, gap, torch.ones_like(gap)), tied)
        return self.end * ((index - 1 + share.clamp(0, 1)) * (2 / (_KNOTS - 1)) - 1)


class KnownRows(nn.Module):
    """Distances of a row from the training rows, all zero for a row like these.

    - For each column, how far the value lies outside of the known range, in standard deviations and with its sign; and
      inside of it, by how much its distance from the nearest of 65 quantiles exceeds what is usual, as in a gap.
    - For the combination of values, which may be new though every value is usual: by how much the row's Mahalanobis
      distance exceeds what is usual.
    - For its neighborhood, which may be empty though the row lies in the midst of the data: by how much the distance to
      the second nearest of at most 256 training rows exceeds what is usual.

    The last two are measured in normal scores (see `NormalScores`) without correlations, so that columns with heavy
    tails do not hide the others. What is usual are five limits: of the largest score of any column, of the Mahalanobis
    distance, of the distance from neighbors, of the largest distance of a value from a quantile, and of the range of a
    column, in standard deviations from its mean. `NewRows` finds them.

    Args:
        in_features: Number of columns.
        num_neighbors: The number of training rows to keep.
    """

    limits: Tensor
    low: Tensor
    high: Tensor
    scale: Tensor
    mean: Tensor
    center: Tensor
    whitening: Tensor
    neighbors: Tensor

    def __init__(self, in_features: int, num_neighbors: int = _MOST_NEIGHBORS) -> None:
        super().__init__()
        self.in_features, self.num_neighbors = in_features, num_neighbors
        self.scores = NormalScores(in_features)
        whitened = in_features if in_features <= _MOST_COLUMNS else 0
        self.register_buffer("limits", torch.full((5,), 3.0))
        self.register_buffer("low", torch.full((in_features,), -3.0))
        self.register_buffer("high", torch.full((in_features,), 3.0))
        self.register_buffer("scale", torch.ones(in_features))
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("center", torch.zeros(in_features))
        self.register_buffer("whitening", torch.zeros(in_features, whitened))
        self.register_buffer("neighbors", torch.zeros(num_neighbors, whitened))

    @classmethod
    def of(cls, x: Tensor) -> KnownRows:
        """The distances from training rows `x`, (n, columns)."""
        known = cls(x.shape[1], min(len(x), _MOST_NEIGHBORS)).to(x)
        known.scores.see(x)
        known.mean.copy_(x.mean(0))
        known.scale.copy_(standard_deviations(x))
        scores = known.scores(x)
        known.center.copy_(scores.mean(0))
        if known.whitening.numel():
            known.whitening.copy_(whiten(scores, max(_RIDGE, x.shape[1] / len(x))))
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: known.num_neighbors]
        known.neighbors.copy_(known._whitened(x[chosen.to(x.device)]))
        return known

    def unusualness(self, x: Tensor) -> Tensor:
        """What has the first four limits, (n, 4)."""
        white = self._whitened(x)
        gaps = (self.scores.gaps(x) / self.scale).abs().amax(1)
        return torch.stack([self.scores(x).abs().amax(1), white.norm(dim=1), self._to_neighbors(white), gaps], 1)

    def limit(self, limits: Tensor) -> None:
        """Set what is usual: the limits of `unusualness`, and of the range."""
        self.limits.copy_(limits)
        reach = self.limits[4] * self.scale
        self.low.copy_(torch.maximum(self.scores.values(-self.limits[0]), self.mean - reach))
        self.high.copy_(torch.minimum(self.scores.values(self.limits[0]), self.mean + reach))

    def forward(self, x: Tensor) -> Tensor:
        """Distances (n, columns + 2)."""
        outside = (x - torch.minimum(torch.maximum(x, self.low), self.high)) / self.scale
        gaps = self.scores.gaps(x) / self.scale
        unusual = gaps.sign() * (gaps.abs() - self.limits[3]).clamp_min(0)
        white = self._whitened(x)
        beyond = torch.stack([white.norm(dim=1), self._to_neighbors(white)], 1) - self.limits[1:3]
        return torch.cat([torch.where(outside == 0, unusual, outside), beyond.clamp_min(0)], 1)

    def _whitened(self, x: Tensor) -> Tensor:
        return (self.scores(x) - self.center) @ self.whitening

    def _to_neighbors(self, white: Tensor) -> Tensor:
        nearest = min(_NEAREST, self.num_neighbors)
        return torch.cdist(white, self.neighbors).topk(nearest, dim=1, largest=False).values[:, -1]

    def extra_repr(self) -> str:
        """What two such modules may differ in besides what they have learned."""
        return f"{self.in_features}, num_neighbors={self.num_neighbors}"


class NewRows:
    """Training rows, each judged as if it were new: its distances are those from the rows of other folds.

    Args:
        x: Training rows, (n, columns), of which at most 5,000 are judged.
    """

    def __init__(self, x: Tensor) -> None:
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:_MOST_ROWS].to(x.device)
        self.index = chosen
        """Which rows are judged."""
        self.x = x[chosen]
        folds = torch.arange(len(chosen), device=x.device) % _FOLDS
        self._parts = []
        for fold in range(min(_FOLDS, len(chosen))):
            others = self.x[folds != fold]
            self._parts.append((folds == fold, KnownRows.of(others if len(others) else self.x)))
        self._end = float(self._parts[0][1].scores.end)
        self._unusualness = self._judge(lambda known, rows: known.unusualness(rows))

    def limits(self, factor: float, width: float) -> Tensor:
        """A multiple of what all but 2% of the rows do not exceed.

        Args:
            factor: The multiple.
            width: The end of a column's range, at most, in standard deviations from its mean.
        """
        largest = factor * self._unusualness.quantile(1 - _LEFT_OUT, dim=0)
        largest[0] = largest[0].clamp_max(self._end + _BEYOND)
        return torch.cat([largest, largest.new_tensor([width])])

    def distances(self, limits: Tensor) -> Tensor:
        """Distances of the rows with these limits, (n, columns + 2)."""
        for _, known in self._parts:
            known.limit(limits)
        return self._judge(lambda known, rows: known(rows))

    def _judge(self, function: Callable[[KnownRows, Tensor], Tensor]) -> Tensor:
        values = [(rows, function(known, self.x[rows])) for rows, known in self._parts]
        result = values[0][1].new_zeros(len(self.x), values[0][1].shape[1])
        for rows, value in values:
            result[rows] = value
        return result


def standard_deviations(x: Tensor) -> Tensor:
    """The standard deviation of each column; 1 for constant ones, in which rounding leaves tiny deviations."""
    std = x.std(0, correction=0)
    return torch.where(std > 1e-6 * x.abs().amax(0), std, torch.ones_like(std))


def whiten(x: Tensor, ridge: float = _RIDGE) -> Tensor:
    """A matrix W, (columns, columns): (x − mean) W has no correlations, and its norm is the Mahalanobis distance.

    Constant columns do not count.

    Args:
        x: Rows.
        ridge: Added to the columns' correlations. With few rows per column, a larger one keeps new rows from being far
            in directions that the rows at hand happen not to vary in.
    """
    mean, std = x.mean(0), x.std(0, correction=0)
    # Rounding leaves a constant column with a tiny deviation, by which nothing must be divided.
    scale = torch.where(std > 1e-6 * x.abs().amax(0), 1 / std, torch.zeros_like(std))
    standardized = ((x - mean) * scale).double()
    roots, vectors = torch.linalg.eigh(standardized.T @ standardized / len(x))
    return (scale[:, None].double() * vectors / (roots.clamp_min(0) + ridge).sqrt()).to(x)
