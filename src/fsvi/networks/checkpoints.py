"""Gradient checkpoints (`torch.utils.checkpoint`) in passes with other parameters, modes or hooks than the network's.

A checkpoint does not keep what a part of the network computes. It calls that part again during the backward pass, after
drawn parameters or eval mode have been undone, so the gradient would silently belong to another pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils import checkpoint

_Make = Callable[[], AbstractContextManager[Any]]
_ACTIVE: ContextVar[tuple[_Make, ...]] = ContextVar("active", default=())


@contextmanager
def repeatable(make: _Make) -> Iterator[None]:
    """The context `make()`, which is entered again when a checkpoint inside it computes its part again."""
    if not torch.is_grad_enabled():  # nothing will be computed again
        with make():
            yield
        return
    token = _ACTIVE.set((*_ACTIVE.get(), make))
    try:
        with _FOLLOWING, make():
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


class _Following:
    """While one of our passes runs, checkpoints remember its contexts; at all other times torch is as it was.

    Torch offers no place for this: only the caller of `checkpoint` can give it a context. The older, reentrant kind
    works with few of our gradients, so inside a pass the newer kind replaces it.
    """

    def __init__(self) -> None:
        self._depth, self._lock = 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._start, self._apply = checkpoint._CheckpointFrame.__init__, checkpoint.CheckpointFunction.apply
                checkpoint._CheckpointFrame.__init__ = self._remember(self._start)  # type: ignore[method-assign]
                checkpoint.CheckpointFunction.apply = _newer  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                checkpoint._CheckpointFrame.__init__ = self._start  # type: ignore[method-assign]
                del checkpoint.CheckpointFunction.apply

    @staticmethod
    def _remember(start: Callable[..., None]) -> Any:
        def remember(frame: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            start(frame, _repeated(recompute), *args, **kwargs)

        return remember


def _newer(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


_FOLLOWING = _Following()
