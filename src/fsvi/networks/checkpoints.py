"""Gradient checkpoints (`torch.utils.checkpoint`) in passes with other parameters, modes or hooks than the network's.

A checkpoint does not keep what a part of the network computes. It calls that part again during the backward pass, when
a draw of the parameters or eval mode has long been taken back, so the gradient would silently be that of another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from torch.utils import checkpoint

_Make = Callable[[], AbstractContextManager[Any]]
_ACTIVE: ContextVar[tuple[_Make, ...]] = ContextVar("active", default=())


@contextmanager
def repeatable(make: _Make) -> Iterator[None]:
    """The context `make()`, which is entered again when a checkpoint inside it computes its part again.

    Args:
        make: A function that makes the context, more than once if necessary.
    """
    _follow_checkpoints()
    token = _ACTIVE.set((*_ACTIVE.get(), make))
    try:
        with make():
            yield
    finally:
        _ACTIVE.reset(token)


def _repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in the contexts that are active now, whenever it is called."""
    contexts = _ACTIVE.get()

    def call(*args: Any, **kwargs: Any) -> Any:
        if _ACTIVE.get() == contexts:  # the first call
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for make in contexts:
                stack.enter_context(repeatable(make))
            return function(*args, **kwargs)

    return call if contexts else function


@cache
def _follow_checkpoints() -> None:
    """Let checkpoints know the contexts in which they are made; outside of any, they are as before.

    Torch offers no place for this: only who calls `checkpoint` can give it a context. The older, reentrant kind works
    with few of our gradients, so the newer kind replaces it in a context; both give the same numbers.
    """
    keep, call_reentrant = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction.apply

    def keep_repeated(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return keep(_repeated(function), *args, **kwargs)

    def call(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not _ACTIVE.get():
            return call_reentrant(function, preserve, *args)
        return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    checkpoint._checkpoint_without_reentrant_generator = keep_repeated  # type: ignore[assignment]
    checkpoint.CheckpointFunction.apply = staticmethod(call)  # type: ignore[method-assign]
