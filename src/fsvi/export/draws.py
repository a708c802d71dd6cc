"""A network under fixed draws of its parameters, as one function of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fsvi.inputs import Inputs
from fsvi.networks.network import Network

Functions = Callable[[Any], Tensor]
"""A function from inputs to the outputs of all draws, (samples, n, outputs), that draws nothing itself."""


def functions_of(network: Network, draws: Sequence[Mapping[str, Tensor]]) -> Functions:
    """The network's outputs under each of `draws`.

    If draws differ in the last layer only, one pass gives the features, and one matrix product all outputs. Otherwise
    there is a pass per draw; `trace` then joins what the passes have in common.

    Args:
        network: The network.
        draws: Parameters and buffers by name, one mapping per draw.
    """
    first = {name: value.detach().clone() for name, value in draws[0].items()}
    differing = [name for name in first if any(not torch.equal(draw[name], first[name]) for draw in draws)]
    chosen = [{name: draw[name].detach().clone() for name in differing} for draw in draws]
    if set(differing) <= set(network.head_names) and not network.is_tied and len(draws) > 1:
        heads = {name: torch.stack([{**first, **draw}[name] for draw in chosen]) for name in network.head_names}
        return lambda x: _head_outputs(network, first, heads, x)
    return lambda x: torch.stack([network(x, {**first, **draw}) for draw in chosen])


def _head_outputs(network: Network, params: Mapping[str, Tensor], heads: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Outputs for draws of the last layer alone, (samples, n, ..., outputs)."""
    features, _ = network.with_features(x, params)
    weight, *bias = (heads[name] for name in network.head_names)
    weight = weight.flatten(2)
    values = features @ weight.flatten(0, 1).T
    values = values.unflatten(-1, weight.shape[:2])
    return (values + bias[0] if bias else values).movedim(-2, 0)
