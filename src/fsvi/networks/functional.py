"""Calling a module with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.networks.checkpoints import repeatable

_Place = tuple[dict[str, Any], str, Tensor]
"""Where a tensor is kept, how it is called there, and what replaces it."""


def functional_call(net: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Any) -> Any:
    """`net(*args, **kwargs)` with `tensors` in place of parameters and buffers of those names, wherever they occur.

    This does what `torch.func.functional_call` does. That one (seen with torch 2.13) never restores the tensors of a
    module with two names, because it treats them as two places to restore.
    """
    places = _places(net, tensors)
    with repeatable(lambda: _replaced(places)):
        return net(*args, **kwargs)


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as `vmap`, is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def _replaced(places: list[_Place]) -> Iterator[None]:
    own = [store[name] for store, name, _ in places]
    try:
        for store, name, tensor in places:
            store[name] = tensor
        yield
    finally:
        for (store, name, _), tensor in zip(places, own, strict=True):
            store[name] = tensor


def _places(net: nn.Module, tensors: Mapping[str, Tensor]) -> list[_Place]:
    """Every place in the network that holds a tensor of those names; one of a module with two names occurs once."""
    values: dict[int, Tensor] = {}
    places: dict[tuple[int, str], tuple[dict[str, Any], int]] = {}
    for prefix, module in net.named_modules(remove_duplicate=False):
        for store in (module._parameters, module._buffers):
            for name, own in store.items():
                places.setdefault((id(module), name), (store, id(own)))
                if (full := f"{prefix}.{name}" if prefix else name) in tensors:
                    values[id(own)] = tensors[full]
    return [(store, name, values[own]) for (_, name), (store, own) in places.items() if own in values]
