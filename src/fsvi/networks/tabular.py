"""Networks for rows of tables: small networks side by side, and features that know the distance from the data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.networks.distance import MOST_ROWS, RandomFeatures, median_distance
from fsvi.validation import check_count

_FREQUENCY_STD, _BIAS_STD, _CLIP = 0.1, 0.5, 3.0
"""How frequencies and biases start, and where the smooth clip of numbers bends."""
_FREQUENCIES, _EMBEDDING = 8, 3
"""Cosines per number, and how many combinations of them are inputs."""
_MASKS = 8
"""Dropout masks per batch and member: one per row would cost more than the layers."""
_MARGIN, _TAIL, _SHARE_OUTSIDE = 0.25, 0.5, 0.05
"""By how much the range exceeds that of the training rows, at least; the scale on which a column's tails fall; and the
share of new rows that may lie outside in some column. All distances are in standard deviations of the columns."""
_SOFT = 0.5
"""Up to about this distance a value outside of the range counts little."""
_OUTSIDE_LENGTH = 0.5
"""The length scale of distances outside."""
_GROWTH, _TREND, _FARTHEST = 0.1, 2.0, 10.0
"""How fast the prior's variance grows outside of the range, the multiple of the slopes, and up to which distance."""
_KEPT, _FADE = 2.0, 3.0
"""How far outside of the range the network's inputs end, and the distance at which h fades."""
_TAIL_SHARE, _SLOPE_ROWS = 0.15, 150
"""The share of rows at an end of a column that tell its slope, and how many of them."""
_VERY_FAR = 1e3
"""Distances are not told apart from there on."""


class TabularFeatures(nn.Module):
    """The last hidden layers of several small networks with the same inputs (after RealMLP; Holzmüller et al., 2024).

    Numbers are centered by the median, divided by the interquartile range and clipped smoothly. Next to each number
    stand a few learned combinations of cosines of it. Every member has its own scale for each input and its own layers.
    A linear layer on top is the average of an ensemble if its weights are.

    Args:
        in_features: The number of columns.
        num_numbers: How many of them have more than two values; `for_rows` finds which.
        hidden: The widths of each member's hidden layers.
        members: The number of members.
    """

    numbers: Tensor
    center: Tensor
    scale: Tensor

    def __init__(
        self,
        in_features: int,
        num_numbers: int = 0,
        hidden: Sequence[int] = (64, 64, 64),
        members: int = 8,
    ) -> None:
        super().__init__()
        self.in_features, self.num_numbers, self.hidden = in_features, num_numbers, tuple(hidden)
        self.members = check_count("members", members)
        check_count("the number of hidden layers", len(self.hidden))
        self.dropout = 0.0
        self.register_buffer("numbers", torch.arange(num_numbers))
        self.register_buffer("center", torch.zeros(in_features))
        self.register_buffer("scale", torch.ones(in_features))
        self.frequency = nn.Parameter(_FREQUENCY_STD * torch.randn(num_numbers, _FREQUENCIES))
        self.phase = nn.Parameter(math.pi * (2 * torch.rand(num_numbers, _FREQUENCIES) - 1))
        self.mixing = nn.Parameter(torch.randn(num_numbers, _FREQUENCIES, _EMBEDDING) / math.sqrt(_FREQUENCIES))
        widths = [in_features + num_numbers * _EMBEDDING, *self.hidden]
        self.gain = nn.Parameter(torch.ones(members, 1, widths[0]))
        pairs = list(itertools.pairwise(widths))
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(members, i, o)) for i, o in pairs])
        self.biases = nn.ParameterList([nn.Parameter(_BIAS_STD * torch.randn(members, 1, o)) for _, o in pairs])

    @classmethod
    def for_rows(cls, x: Tensor, hidden: Sequence[int] = (64, 64, 64), members: int = 8) -> TabularFeatures:
        """Features for training rows `x` (n, columns), with their scales; `hidden` and `members` as above."""
        is_number = torch.tensor([len(column.unique()) > 2 for column in x.T])
        made = cls(x.shape[1], int(is_number.sum()), hidden, members)
        low, high = x.amin(0), x.amax(0)
        lower, middle, upper = (x.float().kthvalue(1 + round(q * (len(x) - 1)), 0)[0] for q in (0.25, 0.5, 0.75))
        spread = torch.where(upper > lower, (upper - lower) / 1.35, (high - low) / 2)
        made.numbers.copy_(is_number.nonzero()[:, 0])
        made.center.copy_(torch.where(is_number, middle, low))
        ignored = torch.finfo(x.dtype).max  # nothing is learned of a constant column, so other values must not matter
        made.scale.copy_(torch.where(is_number, spread, torch.where(high > low, high - low, ignored)))
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, members · width of the last hidden layer)."""
        return self.by_member(x).transpose(0, 1).flatten(1)

    def by_member(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Features (members, n, width); `rows`, (members, n), says which rows of `x` each member gets."""
        x = (x - self.center) / self.scale
        x = x * torch.rsqrt(1 + (x / _CLIP).square())
        waves = torch.cos(2 * math.pi * x[:, self.numbers, None] * self.frequency + self.phase)
        inputs = torch.cat([x, torch.einsum("ncf,cfe->nce", waves, self.mixing).flatten(1)], 1)
        h = (inputs if rows is None else inputs[rows]) * self.gain
        for weight, bias in zip(self.weights, self.biases, strict=True):
            h = F.silu(torch.baddbmm(bias, h, weight, alpha=weight.shape[1] ** -0.5))
            if self.training and self.dropout:
                h = h * self._masks(h)
        return h

    def _masks(self, h: Tensor) -> Tensor:
        kept = torch.rand(h.shape[0], _MASKS, h.shape[2], device=h.device) >= self.dropout
        masks = kept / (1 - self.dropout)
        return masks.repeat(1, math.ceil(h.shape[1] / _MASKS), 1)[:, : h.shape[1]]


class DistanceFeatures(nn.Module):
    """Features of a trained network, next to random features that know how far a row is from the training rows.

    Let h be the network's features of a row of standardized columns, and e the distances of its columns from their
    range in the training rows. The outputs are

        [h / √(1 + |e|²/9), φ(h, e), √((2 Σ sᵢ|eᵢ|)² + |e|²/10)],    φ(z)·φ(z') ≈ exp(−½|z − z'|²).

    A linear layer on top, with random weights for all but h, is a Gaussian process around the network's function. Its
    length scale is the median distance of h between training rows, so that its variance returns to the prior's in gaps
    of the data. Outside of the range of the data e does the same for a single column. There, the function may also
    continue with slopes s such as the network has in the outermost rows at that end of the column, so that important
    columns make it uncertain sooner. And h fades, so that the mean tends to the layer's bias.

    The range is that of the order statistics, with a margin: rare values of the training rows are inside. Two standard
    deviations outside of it, the network's inputs end.

    Args:
        trunk: The network without its last layer.
        in_features: The number of columns.
        num_hidden: The number of features of the network.
        num_features: The number of random features.
    """

    low: Tensor
    high: Tensor
    slopes: Tensor
    length: Tensor

    def __init__(self, trunk: nn.Module, in_features: int, num_hidden: int, num_features: int = 512) -> None:
        super().__init__()
        self.trunk, self.in_features, self.num_hidden, self.num_features = trunk, in_features, num_hidden, num_features
        self.random = RandomFeatures(num_hidden + in_features, num_features, 1.0)
        self.register_buffer("low", torch.zeros(in_features))
        self.register_buffer("high", torch.zeros(in_features))
        self.register_buffer("slopes", torch.zeros(2, in_features))
        self.register_buffer("length", torch.tensor(1.0))

    @property
    def out_features(self) -> int:
        """The number of columns of the output."""
        return self.num_hidden + self.num_features + 1

    @torch.no_grad()
    def see(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> None:
        """Take ranges, the length scale and slopes from training rows `x` and the network's function.

        The function gives means of targets, or logits with mean zero.
        """
        beyond = margin(*x.shape) * x.std(0, correction=0)
        self.low.copy_(x.amin(0) - beyond)
        self.high.copy_(x.amax(0) + beyond)
        self.length.fill_(median_distance(self.trunk(x[torch.randperm(len(x))[:MOST_ROWS]])))
        slopes = [[_slope(x, column, sign, function) for column in range(self.in_features)] for sign in (-1, 1)]
        self.slopes.copy_(torch.tensor(slopes))
        # Where most rows have the extreme value, the other end tells the slope.
        self.slopes.copy_(torch.where(self.slopes > 0, self.slopes, self.slopes.flip(0)))

    def outside(self, x: Tensor) -> Tensor:
        """e, (n, columns): how far each column left its range, with its sign; little just outside."""
        distance = (x - x.clamp(self.low, self.high)).clamp(-_VERY_FAR, _VERY_FAR)
        return distance * distance.abs() / (_SOFT + distance.abs())

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, num_hidden + num_features + 1)."""
        kept = _KEPT * (self.high > self.low)  # a network has learned nothing of a constant column
        h = self.trunk(x.clamp(self.low - kept, self.high + kept))
        e = self.outside(x)
        random = self.random(torch.cat([h / self.length, e / _OUTSIDE_LENGTH], 1))
        squared = e.square().sum(1, keepdim=True)
        slopes = torch.where(e < 0, self.slopes[0], self.slopes[1])
        continued = _TREND * (slopes * e.abs().clamp_max(_FARTHEST)).sum(1, keepdim=True)
        trend = (continued.square() + _GROWTH * squared.clamp_max(_FARTHEST**2)).sqrt()
        return torch.cat([h * torch.rsqrt(1 + squared / _FADE**2), random, trend], 1)


def _slope(x: Tensor, column: int, sign: int, function: Callable[[Tensor], Tensor]) -> float:
    """The mean change of the function per unit, if the outermost rows of a column move to where the others begin."""
    values = sign * x[:, column]
    edge = values.kthvalue(1 + round((1 - _TAIL_SHARE) * (len(x) - 1)))[0]
    rows = (values > edge).nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows), device=rows.device)[:_SLOPE_ROWS]]
    moved = x[rows]
    moved[:, column] = sign * edge
    change = (function(x[rows]) - function(moved)).square().mean(1).sqrt()
    return float(change.sum() / (values[rows] - edge).sum().clamp_min(1e-12))


def margin(num_rows: int, num_columns: int) -> float:
    """By how many standard deviations the range should exceed that of the training rows.

    A new value lies beyond the extremes of n rows with probability 2/(n + 1), and if tails fall exponentially, beyond
    another m with probability 2 exp(−m/½)/(n + 1). Of C columns, some does with at most C times that probability; m is
    chosen so that this is a twentieth.
    """
    return max(_MARGIN, _TAIL * math.log(2 * num_columns / (_SHARE_OUTSIDE * (num_rows + 1))))
