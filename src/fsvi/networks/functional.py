"""Calling a module with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.networks.checkpoints import repeatable

_Place = tuple[str, dict[str, Any], str, Tensor]
"""A name, where the tensor of that name is kept and how it is called there, and what replaces it."""


def functional_call(
    net: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    run: Callable[..., Any] | None = None,
) -> Any:
    """`net(*args, **kwargs)` with `tensors` in place of parameters and buffers of those names, wherever they occur.

    This does what `torch.func.functional_call` does, in fewer calls. That one (seen with torch 2.13) never restores the
    tensors of a module with two names, because it treats them as two places to restore.

    Args:
        net: The module.
        tensors: Tensors by the names of the parameters and buffers that they replace.
        args: The positional arguments of the call.
        kwargs: The arguments by name.
        run: What calls the module with tensors by the names of their places, such as a compiled function.
    """
    places = _places(net, tensors)
    if run is not None:
        with repeatable(lambda: _replaced(places), enter=False):
            return run({full: tensor for full, _, _, tensor in places}, args, kwargs or {})
    with repeatable(lambda: _replaced(places)):
        return net(*args, **(kwargs or {}))


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as `vmap`, is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def _replaced(places: Sequence[_Place]) -> Iterator[None]:
    """Put the tensors in their places."""
    own = [store[name] for _, store, name, _ in places]
    try:
        for _, store, name, tensor in places:
            store[name] = tensor
        yield
    finally:
        for (_, store, name, _), tensor in zip(places, own, strict=True):
            store[name] = tensor


def _places(net: nn.Module, tensors: Mapping[str, Tensor]) -> list[_Place]:
    """Every place in the network that holds a tensor of those names: its full name, where it is, and what replaces it.

    A place of a module with two names occurs once.
    """
    values: dict[int, Tensor] = {}
    places: dict[tuple[int, str], tuple[str, dict[str, Any], int]] = {}
    for prefix, module in net.named_modules(remove_duplicate=False):
        for store in (module._parameters, module._buffers):
            for name, own in store.items():
                full = f"{prefix}.{name}" if prefix else name
                places.setdefault((id(module), name), (full, store, id(own)))
                if full in tensors:
                    values[id(own)] = tensors[full]
    return [(full, store, name, values[own]) for (_, name), (full, store, own) in places.items() if own in values]
