"""Networks for tables that know how far a row is from the training rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fsvi.networks.fading import FadingFeatures
from fsvi.networks.known_rows import KnownRows, NewRows
from fsvi.networks.mlp import mlp
from fsvi.networks.network import Network
from fsvi.validation import check_choice

_REACH = 10.0
"""How much larger distances are than hidden units, together, in `table_mlp`."""
_FACTOR, _WIDTH = 1.0, 5.0
"""The limits of `table_mlp`, as in `NewRows.limits`."""
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def with_distances(network: Network, known: KnownRows, reach: float) -> nn.Sequential | None:
    """The same function on the training rows, by a network whose features fade away from them.

    None if it cannot be made: the last layer is a convolution or is used twice, or there are outputs at positions.

    Args:
        network: A network from rows (n, columns) to outputs, whose last layer has been found.
        known: The distances.
        reach: See `FadingFeatures`.
    """
    if network.layout.positions or network.is_tied or not isinstance(network.linear, nn.Linear):
        return None
    body, linear = _without_head(network), network.linear
    with torch.no_grad():
        example = body(known.low[None].to(linear.weight))
    if not isinstance(example, Tensor) or example.shape != (1, network.num_features):
        return None
    features = FadingFeatures(body, network.num_features, known, reach)
    last = nn.Linear(features.out_features, network.num_outputs, bias=False)
    with torch.no_grad():
        last.weight.zero_()
        last.weight[:, : network.num_features] = linear.weight
        if linear.bias is not None:
            last.weight[:, network.num_features] = linear.bias
    return nn.Sequential(features, last).to(linear.weight)


def _without_head(network: Network) -> nn.Module:
    """A copy of the model, in eval mode, that returns the features."""
    if not network.head:
        return nn.Identity()
    body = copy.deepcopy(network.module).eval()
    parent, _, name = network.head.rpartition(".")
    setattr(body.get_submodule(parent), name, nn.Identity())
    return body


def table_mlp(
    x: Tensor, hidden: Sequence[int] = (100, 100), out_features: int = 1, activation: str = "relu"
) -> nn.Sequential:
    """A fully connected network for tables that knows how far a row is from its training rows.

    The estimators give such distances to any network.

    Args:
        x: Training rows, (n, columns), as the network will see them. Quantiles of the columns and at most 256 rows, in
            normal scores, are kept.
        hidden: Width of each hidden layer.
        out_features: Number of outputs (classes, or regression targets).
        activation: "relu" or "tanh".
    """
    kind = _ACTIVATIONS[check_choice("activation", activation, _ACTIVATIONS)]
    network = Network(mlp(x.shape[1], hidden, out_features, kind).to(x)).examined(x[:1])
    known = KnownRows.of(x)
    known.limit(NewRows(x).limits(_FACTOR, _WIDTH))
    reach = _REACH * math.sqrt(network.num_features)
    return cast(nn.Sequential, with_distances(network, known, reach))
