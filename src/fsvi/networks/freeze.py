"""Copies of a network in which some layers stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

from torch import nn

from fsvi.errors import InvalidInputError


def frozen(net: nn.Module, freeze: bool | Sequence[str], head: Collection[str]) -> nn.Module:
    """A copy of `net` with parameters frozen: those of the layers that `freeze` names, or with True all but `head`."""
    net = copy.deepcopy(net)
    for name in _names(net, freeze, head):
        net.get_parameter(name).requires_grad_(False)
    return net


def _names(net: nn.Module, freeze: bool | Sequence[str], head: Collection[str]) -> list[str]:
    names = [name for name, _ in net.named_parameters()]
    if isinstance(freeze, bool):
        return [name for name in names if freeze and name not in head]
    for layer in freeze:
        if not any(_is_of(name, layer) for name in names):
            known = ", ".join(names)
            raise InvalidInputError(f"freeze={layer!r} is no layer or parameter of the network: there are {known}.")
    return [name for name in names if any(_is_of(name, layer) for layer in freeze)]


def _is_of(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")
