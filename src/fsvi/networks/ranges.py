"""Features of a table's rows that say how far a row lies outside of the range of the training rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fsvi.networks.mlp import mlp
from fsvi.validation import check_choice, check_count

_REACH = 10.0
"""How much larger than the hidden units together the distances are. So the variance on the data can be small and that
far away large with weights of about the same variance, where training starts."""
_MARGIN, _TAIL, _SHARE_OUTSIDE = 0.25, 0.5, 0.05
"""By how many standard deviations the range exceeds that of the training rows, at least; the scale on which a column's
tails fall, in standard deviations; and the share of new rows that may lie outside in some column."""
_SOFT = 0.5
"""Up to about this distance a value outside of the range counts little."""
_USUAL = 0.999
"""The share of the training rows whose combination of values counts as usual: all of them in a small table."""
_RIDGE = 1e-3
"""Added to the columns' correlations, which are singular where columns depend on each other."""
_MOST_COLUMNS = 500
"""Tables with more columns have no distance of the combination: it costs a product with columns² numbers."""
_MOST_ROWS = 100_000
"""Training rows whose distances are sorted, at most."""
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class RangeFeatures(nn.Module):
    """Hidden layers whose output fades as a row leaves the training range, next to how far each column left it.

    Let d be the distances of a row from the training rows:

    - for each column, from the range [low, high], in standard deviations and with its sign;
    - for the combination of values, which may be new though every value is usual: by how much the row's Mahalanobis
      distance exceeds that of nearly all training rows.

    Let e = d |d| / (½ + |d|), which a value just outside of the range hardly changes, and h the hidden layers of x. The
    features are [h, 10 √width · e] / √(1 + |e|²). On the training rows e is zero, up to outliers, and the features are
    h, as in `mlp`. Far away, h fades and the other features point in the direction in which the row left. A last layer
    on top has a mean that tends to its bias there, and a variance of its own for each distance.

    Without this, a network of ordinary width cannot tell that one column of fifty is out of range.

    Args:
        in_features: Number of columns.
        hidden: Width of each hidden layer.
        activation: "relu" or "tanh".
        width: The largest distance of `low` and `high` from a column's mean, in standard deviations. A column with
            outliers has a smaller range than its extremes.
    """

    low: Tensor
    high: Tensor
    scale: Tensor
    center: Tensor
    whitening: Tensor
    radius: Tensor

    def __init__(
        self, in_features: int, hidden: Sequence[int] = (100, 100), activation: str = "relu", width: float = 5.0
    ) -> None:
        super().__init__()
        self.in_features, self.hidden, self.width = in_features, tuple(hidden), width
        self.activation = check_choice("activation", activation, _ACTIVATIONS)
        check_count("the number of hidden layers", len(self.hidden))
        layers = mlp(in_features, self.hidden, 1, _ACTIVATIONS[activation])
        self.layers = layers[:-1]
        self.register_buffer("low", torch.full((in_features,), -width))
        self.register_buffer("high", torch.full((in_features,), width))
        self.register_buffer("scale", torch.ones(in_features))
        self.register_buffer("center", torch.zeros(in_features))
        self.register_buffer("whitening", torch.zeros(in_features, in_features if self._has_combination else 0))
        self.register_buffer("radius", torch.zeros(()))

    @property
    def out_features(self) -> int:
        """How many features there are."""
        return self.hidden[-1] + self.in_features + 1

    @property
    def _has_combination(self) -> bool:
        return self.in_features <= _MOST_COLUMNS

    def see(self, x: Tensor) -> None:
        """Take the range of training rows `x`. A constant column has no scale, so that any other value is far."""
        mean, std = x.mean(0), x.std(0, correction=0)
        beyond = margin(*x.shape) * std
        self.low.copy_(torch.maximum(x.amin(0) - beyond, mean - self.width * std))
        self.high.copy_(torch.minimum(x.amax(0) + beyond, mean + self.width * std))
        self.scale.copy_(torch.where(std > 0, std, torch.ones_like(std)))
        if self._has_combination:
            self.center.copy_(mean)
            self.whitening.copy_(whiten(x))
            self.radius.copy_(usual_distance(((x - mean) @ self.whitening.to(x)).norm(dim=1)))

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, width of the last hidden layer + columns + 1)."""
        outside = (x - torch.minimum(torch.maximum(x, self.low), self.high)) / self.scale
        combined = ((x - self.center) @ self.whitening).norm(dim=1, keepdim=True) - self.radius
        outside = torch.cat([outside, combined.clamp_min(0)], 1)
        distance = outside * outside.abs() / (_SOFT + outside.abs())
        fading = torch.rsqrt(1 + distance.square().sum(1, keepdim=True))
        return torch.cat([self.layers(x), _REACH * math.sqrt(self.hidden[-1]) * distance], 1) * fading

    def extra_repr(self) -> str:
        """What two such layers may differ in besides their weights."""
        return f"{self.in_features}, hidden={self.hidden}, activation={self.activation!r}, width={self.width}"


def margin(num_rows: int, num_columns: int) -> float:
    """By how many standard deviations the range should exceed that of the training rows.

    A new value lies beyond the extremes of n rows with probability 2/(n + 1), and if tails fall exponentially, beyond
    another m with probability 2 exp(−m/½)/(n + 1). Of C columns, some does with at most C times that probability; m is
    chosen so that this is a twentieth.
    """
    return max(_MARGIN, _TAIL * math.log(2 * num_columns / (_SHARE_OUTSIDE * (num_rows + 1))))


def whiten(x: Tensor) -> Tensor:
    """A matrix W, (columns, columns): (x − mean) W has no correlations, and its norm is the Mahalanobis distance.

    Constant columns do not count.
    """
    mean, std = x.mean(0), x.std(0, correction=0)
    # Rounding leaves a constant column with a tiny deviation, by which nothing must be divided.
    scale = torch.where(std > 1e-6 * x.abs().amax(0), 1 / std, torch.zeros_like(std))
    standardized = ((x - mean) * scale).double()
    roots, vectors = torch.linalg.eigh(standardized.T @ standardized / len(x))
    return (scale[:, None].double() * vectors / (roots.clamp_min(0) + _RIDGE).sqrt()).to(x)


def usual_distance(distances: Tensor) -> Tensor:
    """The Mahalanobis distance that nearly all new rows do not exceed, from those of the training rows.

    The covariance fits the rows that it comes from, so their distances are too small: without the row itself, a squared
    distance d² would be d²/(1 − d²/n).
    """
    squares = distances.square()
    squares = squares / (1 - squares / len(squares)).clamp_min(_RIDGE)
    return squares[:_MOST_ROWS].sqrt().quantile(_USUAL)


def table_mlp(
    x: Tensor, hidden: Sequence[int] = (100, 100), out_features: int = 1, activation: str = "relu"
) -> nn.Sequential:
    """A fully connected network for tables that knows the range of its training rows: the estimators' default.

    Args:
        x: Training rows, (n, columns), as the network will see them. Only each column's range is kept.
        hidden: Width of each hidden layer, at least one.
        out_features: Number of outputs (classes, or regression targets).
        activation: "relu" or "tanh".
    """
    features = RangeFeatures(x.shape[1], hidden, activation)
    features.see(x)
    network = nn.Sequential(features, nn.Linear(features.out_features, out_features))
    forget_outside(network)
    return network


def forget_outside(network: nn.Module) -> None:
    """Set the last layer's weights on the distances to zero in a network of `table_mlp`; leave others as they are.

    A column's few outliers must not say what the function is wherever the column leaves its range.
    """
    if knows_range(network):
        features, last = cast(nn.Sequential, network)
        with torch.no_grad():
            cast(nn.Linear, last).weight[:, cast(RangeFeatures, features).hidden[-1] :] = 0


def knows_range(network: nn.Module) -> bool:
    """Whether `table_mlp` has made the network."""
    return isinstance(network, nn.Sequential) and len(network) == 2 and isinstance(network[0], RangeFeatures)
