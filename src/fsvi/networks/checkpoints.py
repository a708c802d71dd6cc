"""Gradient checkpoints (`torch.utils.checkpoint`) in passes with other parameters, modes or hooks than the network's.

A checkpoint does not keep what a part of the network computes. It calls that part again during the backward pass, after
drawn parameters or eval mode have been undone, so the gradient would silently belong to another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from torch.utils import checkpoint

_Make = Callable[[], AbstractContextManager[Any]]
_ACTIVE: ContextVar[tuple[_Make, ...]] = ContextVar("active", default=())


@contextmanager
def repeatable(make: _Make = nullcontext, enter: bool = True) -> Iterator[None]:
    """The context `make()`, which is entered again when a checkpoint inside it computes its part again.

    Args:
        make: A function that makes the context, more than once if necessary.
        enter: Whether to enter it now, too, or only when a part is computed again.
    """
    token = _ACTIVE.set((*_ACTIVE.get(), make))
    try:
        with make() if enter else nullcontext():
            yield
    finally:
        _ACTIVE.reset(token)


def _repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in the contexts that are active now, whenever it is called."""
    contexts = _ACTIVE.get()

    def call(*args: Any, **kwargs: Any) -> Any:
        if _ACTIVE.get() == contexts:  # the backward pass is inside of the contexts
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for make in contexts:
                stack.enter_context(repeatable(make))
            return function(*args, **kwargs)

    return call if contexts else function


def _follow_checkpoints() -> None:
    """Let checkpoints know the contexts in which they are made; outside of any, they are as before.

    Torch offers no place for this: only the caller of `checkpoint` can give it a context. The older, reentrant kind
    works with few of our gradients, so in a context the newer kind replaces it.
    """
    frame, reentrant = checkpoint._CheckpointFrame, checkpoint.CheckpointFunction
    start = frame.__init__

    def remember(self: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        start(self, _repeated(recompute), *args, **kwargs)

    def apply(cls: Any, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if cls is not reentrant or not _ACTIVE.get():
            return super(reentrant, cls).apply(function, preserve, *args)
        return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)

    frame.__init__ = remember  # type: ignore[assignment, method-assign]
    reentrant.apply = classmethod(apply)  # type: ignore[assignment, method-assign]


_follow_checkpoints()
