"""Features of a table's rows that say how far a row lies outside of the range of the training rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fsvi.networks.mlp import mlp
from fsvi.validation import check_choice, check_count

_REACH = 10.0
"""How much larger than the hidden units together the distances are. So the variance on the data can be small and that
far away large with weights of about the same variance, where training starts."""
_MARGIN = 0.25
"""By how many standard deviations the range exceeds that of the training rows: of many columns, some value of a new row
often lies a little outside."""
_SOFT = 0.5
"""Up to about this distance a value outside of the range counts little."""
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class RangeFeatures(nn.Module):
    """Hidden layers whose output fades as a row leaves the training range, next to how far each column left it.

    Let d be the distance of each column from the range [low, high] in standard deviations, with its sign,
    e = d |d| / (½ + |d|), which a value just outside of the range hardly changes, and h the hidden layers of x. The
    features are [h, 10 √width · e] / √(1 + |e|²). On the training rows e is zero and the features are h, as in `mlp`.
    Far away, h fades and the other features point in the direction in which the row left. A last layer on top has a
    mean that tends to its bias there, and a variance of its own for each column.

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

    @property
    def out_features(self) -> int:
        """How many features there are."""
        return self.hidden[-1] + self.in_features

    def see(self, x: Tensor) -> None:
        """Take the range of training rows `x`. A constant column has no scale, so that any other value is far."""
        mean, std = x.mean(0), x.std(0, correction=0)
        self.low.copy_(torch.maximum(x.amin(0) - _MARGIN * std, mean - self.width * std))
        self.high.copy_(torch.minimum(x.amax(0) + _MARGIN * std, mean + self.width * std))
        self.scale.copy_(torch.where(std > 0, std, torch.ones_like(std)))

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, width of the last hidden layer + columns)."""
        outside = (x - torch.minimum(torch.maximum(x, self.low), self.high)) / self.scale
        distance = outside * outside.abs() / (_SOFT + outside.abs())
        fading = torch.rsqrt(1 + distance.square().sum(1, keepdim=True))
        return torch.cat([self.layers(x), _REACH * math.sqrt(self.hidden[-1]) * distance], 1) * fading

    def extra_repr(self) -> str:
        """What two such layers may differ in besides their weights."""
        return f"{self.in_features}, hidden={self.hidden}, activation={self.activation!r}, width={self.width}"


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
    last = nn.Linear(features.out_features, out_features)
    with torch.no_grad():
        last.weight[:, features.hidden[-1] :] = 0  # training rows say nothing about these weights
    return nn.Sequential(features, last)
