"""Copies of a user's modules, whatever these keep besides parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.validation import first_line

Module = TypeVar("Module", bound=nn.Module)

_OF_TORCH = frozenset(vars(nn.Module()))
_REFUSALS = (TypeError, ValueError, AttributeError, RuntimeError)


def deep_copy(module: Module, instead: Mapping[int, Any] | None = None) -> Module:
    """A deep copy that shares attributes which cannot be copied, such as a lock or an open file.

    Activations that a layer keeps from its last call cannot be copied either; the copy has them without their graph.
    `instead` is what stands in the copy for some of its parts, by identity.
    """
    memo: dict[int, Any] = dict(instead or {})
    try:
        return copy.deepcopy(module, dict(memo))
    except _REFUSALS:
        memo |= _not_copied(module, memo)
    try:
        return copy.deepcopy(module, memo)
    except _REFUSALS as error:
        raise InvalidInputError(f"the network cannot be copied, which methods need: {first_line(error)}.") from error


def _not_copied(module: nn.Module, memo: dict[int, Any]) -> dict[int, Any]:
    """What stands for each attribute of its layers that cannot be copied, by identity; inner layers come first."""
    found: dict[int, Any] = {}
    for part in reversed(list(module.modules())):
        for value in [value for name, value in vars(part).items() if name not in _OF_TORCH]:
            try:
                copy.deepcopy(value, memo | found)
            except _REFUSALS:
                found[id(value)] = value.detach() if isinstance(value, Tensor) else value
    return found
