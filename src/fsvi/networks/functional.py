"""Calling a module with other tensors in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def functional_call(
    net: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    run: Callable[..., Any] | None = None,
) -> Any:
    """`net(*args, **kwargs)` with `tensors` in place of parameters and buffers of those names, wherever they occur.

    `torch.func.functional_call` (seen with torch 2.13) never restores a module's own tensors if the module has two
    names, because it treats them as two places to restore. Here every place has one name.

    Args:
        net: The module.
        tensors: Tensors by the names of the parameters and buffers that they replace.
        args: The positional arguments of the call.
        kwargs: The arguments by name.
        run: What calls the module with tensors by the names of their places, such as a compiled function.
    """
    if run is not None:
        return run(_spread(net, tensors), args, kwargs or {})
    return torch.func.functional_call(net, _spread(net, tensors), args, kwargs, tie_weights=False)


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as `vmap`, is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _spread(net: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` for every place in the network that holds a tensor of that name, with one name per place."""
    values: dict[int, Tensor] = {}
    places: dict[tuple[int, str], tuple[str, int]] = {}
    for prefix, module in net.named_modules(remove_duplicate=False):
        for name, own in (*module._parameters.items(), *module._buffers.items()):
            full = f"{prefix}.{name}" if prefix else name
            places.setdefault((id(module), name), (full, id(own)))
            if full in tensors:
                values[id(own)] = tensors[full]
    return {full: values[own] for full, own in places.values() if own in values}
