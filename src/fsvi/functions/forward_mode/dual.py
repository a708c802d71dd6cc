"""Tensors that carry their derivative along one direction through the user's own model.

A parameter that moves becomes a `Dual`. The model's `forward` runs as it is, with its hooks, parametrizations and
shared layers, and every function of torch that meets a `Dual` is looked up in `RULES`. Functions without a rule are
left to `torch.func.jvp`, and functions written in Python to the functions that they call. `torch.func.jvp` of the whole
model gives the same, but it makes many small calls per layer, and keeps more tensors for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.utils._pytree import tree_flatten, tree_iter, tree_map, tree_unflatten

from fsvi.functions.forward_mode.kernels import DECOMPOSITIONS, plain_kernels

Rule = Callable[..., Any]
"""Called with a function of torch and its arguments; gives the function's result."""

RULES: dict[str, Rule] = {}
"""Rules by the names of torch's functions."""

_IN_PYTHON = ("torch.nn.functional", "torch.functional")
"""Modules of functions that are written in Python."""


class Dual(Tensor):
    """A value and its derivative along a direction.

    Tensors that are no `Dual` do not change along the direction.

    Args:
        value: The value.
        change: The derivative, of the same shape.
    """

    value: Tensor
    change: Tensor
    is_viewed = False
    """Whether another tensor may share its memory."""

    @staticmethod
    def __new__(cls, value: Tensor, change: Tensor) -> Dual:
        """A tensor without memory of its own; complex numbers are left to `torch.func.jvp` of the whole network."""
        if value.is_complex():
            raise NotImplementedError("complex numbers have no rules.")
        self: Dual = Tensor._make_wrapper_subclass(
            cls, value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        self.value, self.change = value, change if change.dtype == value.dtype else change.to(value.dtype)
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, func.__name__
        if not torch.is_grad_enabled() and any(_has_graph(each) for each in tree_iter((args, kwargs))):
            raise NotImplementedError(f"{name} is called without gradients, as in a function with its own backward.")
        if isinstance(func, FunctionType) and func.__module__ in _IN_PYTHON:
            return _written_out(func)(*args, **kwargs)
        if name == "requires_grad_":  # transformers asks this of embeddings; a tensor that moves has a graph already
            return args[0]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            return _in_place(func, args, kwargs)
        rule = RULES.get(name)
        return by_torch(func, *args, **kwargs) if rule is None else rule(func, *args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} does not tell about the derivatives of its arguments.")


def _has_graph(x: Any) -> bool:
    return isinstance(x, Dual) and (x.value.requires_grad or x.change.requires_grad)


def value_of(x: Any) -> Any:
    """The value of a `Dual`, or what is no `Dual` itself."""
    return x.value if isinstance(x, Dual) else x


def by_torch(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The function's result by `torch.func.jvp`."""
    leaves, form = tree_flatten((args, kwargs))
    moving = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Dual)}

    def call(given: dict[int, Tensor]) -> Any:
        own_args, own_kwargs = tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(leaves)], form)
        return func(*own_args, **own_kwargs)

    with plain_kernels():
        values, changes = ({i: getattr(x, name) for i, x in moving.items()} for name in ("value", "change"))
        results = jvp(call, (values,), (changes,))
    return tree_map(partial(made_of, moving.values()), *results)


def made_of(sources: Iterable[Dual], value: Tensor, change: Tensor) -> Tensor:
    """What was computed from other tensors, whose memory it may share; integers do not move."""
    if not value.is_floating_point() and not value.is_complex():
        return value
    made, memory = Dual(value, change), value.untyped_storage()._cdata
    for source in sources:
        if source.value.untyped_storage()._cdata == memory:
            source.is_viewed = made.is_viewed = True
    return made


def _in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give the first argument its new value; other tensors that share its memory could not follow."""
    x, name = args[0], func.__name__
    if not isinstance(x, Dual) or x.is_viewed:
        raise NotImplementedError(f"{name} changes a tensor that other tensors may share.")

    def changed(own: Tensor, *others: Any, **options: Any) -> Tensor:
        own = own.clone()
        func(own, *others, **options)
        return own

    rule = RULES.get(name[:-1])
    new = by_torch(changed, *args, **kwargs) if rule is None else rule(getattr(torch, name[:-1]), *args, **kwargs)
    x.value, x.change = new.value, new.change
    return x


@cache
def _written_out(func: FunctionType) -> Callable[..., Any]:
    """A function of torch written in Python, without its question whether a class like `Dual` takes over."""
    asks = [name for name in func.__code__.co_names if name.startswith("has_torch_function")]
    if func.__name__ not in RULES and func in DECOMPOSITIONS:
        return DECOMPOSITIONS[func]
    if not asks:  # it only chooses between others
        return partial(RULES.get(func.__name__, by_torch), func)
    names = {**func.__globals__, **dict.fromkeys(asks, lambda *_: False)}
    return FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
