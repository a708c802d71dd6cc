"""What several passes of a network have in common, computed once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from fsvi.networks.devices import random_state

_STATE: tuple[Any, ...] = (torch._C._set_grad_enabled,)
"""Calls that change how torch computes: every pass makes them."""


class SharedStart:
    """Passes of one network over the same inputs that differ from some point on, where something random is used.

    The first pass is recorded up to this point. Later passes are given the recorded results instead of computing them,
    so S passes cost one start and S remainders, and every output is that of a full pass to the bit. Only results that
    are still in use at this point are kept in memory.

    Passes are made in full after a first pass that drew random numbers before this point or changed a kept tensor in
    place after it, and if a pass makes other calls than the first. They are always in full if the network has an
    `nn.TransformerEncoder` that drops padding, because recording would switch that off, and in inference mode, where
    changes in place are not counted.

    Args:
        net: The network that is called, in eval mode and without gradients.
    """

    def __init__(self, net: nn.Module) -> None:
        self._device = next(net.parameters()).device
        self._start: _Start | None = None
        drops_padding = any(getattr(module, "use_nested_tensor", False) for module in net.modules())
        self._is_shared = not drops_padding and not torch.is_inference_mode_enabled()
        self._pass: _Pass | None = None

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        """What `function` returns; it makes one pass, and calls `watch` or `end` to say what is random.

        Args:
            function: A function without arguments.
        """
        if self._start is not None and not self._start.is_intact():
            self._is_shared = False
        if not self._is_shared:
            return function()
        self._pass = _Pass(self._start, self._device)
        try:
            with self._pass:
                output = function()
            self._pass.end()
        except _DifferentCallsError:
            self._is_shared, self._pass = False, None
            return function()
        self._start, self._pass = self._pass.start, None
        self._is_shared = self._start is not None and bool(self._start.calls)
        return output

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """The pass's start ends before the first call that is given one of these tensors.

        Args:
            tensors: The tensors that differ between passes.
        """
        if self._pass is not None:
            self._pass.watched.update((id(tensor), tensor) for tensor in tensors)

    def end(self) -> None:
        """The pass's start ends here, because what follows is random."""
        if self._pass is not None:
            self._pass.end()


class _DifferentCallsError(Exception):
    """A pass makes other calls than the first."""


class _Call(NamedTuple):
    """A call of a torch function.

    Attributes:
        function: The function.
        result: What it returned: a weak reference for a tensor.
    """

    function: Callable[..., Any]
    result: Any


class _Start:
    """The calls of a start; those of their results that are in use at its end are kept.

    Args:
        calls: The calls, just made.
    """

    def __init__(self, calls: list[_Call]) -> None:
        self.calls = [_Call(function, _kept(result)) for function, result in calls]
        tensors = {id(each): each for _, result in self.calls for each in tree_iter(result) if isinstance(each, Tensor)}
        self._is_countable = not any(tensor.is_inference() for tensor in tensors.values())
        self._versions = [(tensor, tensor._version) for tensor in tensors.values()] if self._is_countable else []

    def is_intact(self) -> bool:
        """Whether no kept tensor was changed in place; false if changes are not counted, as in inference mode."""
        return self._is_countable and all(tensor._version == version for tensor, version in self._versions)


class _Pass(TorchFunctionMode):
    """A context for one pass: it records the pass's start, or replaces it by that of an earlier pass.

    Args:
        start: The start of the first pass; None records it.
        device: Where the network is.
    """

    def __init__(self, start: _Start | None, device: torch.device) -> None:
        super().__init__()
        self.start = start
        self.watched: dict[int, Tensor] = {}
        self._device = device
        self._replayed = None if start is None else iter(start.calls)
        self._recorded: list[_Call] = []
        self._random_state = self._get_random_state() if start is None else []
        self._has_ended = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._has_ended and (self._is_watched(args) or self._is_watched(kwargs)):
            self.end()
        if self._has_ended or func in _STATE:
            return func(*args, **kwargs)
        if self._replayed is not None:
            return self._replay(func)
        result = func(*args, **kwargs)
        self._recorded.append(_Call(func, weakref.ref(result) if isinstance(result, Tensor) else result))
        return result

    def end(self) -> None:
        """Everything after this is computed."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._replayed is not None:
            if next(self._replayed, None) is not None:
                raise _DifferentCallsError
        elif all(map(torch.equal, self._random_state, self._get_random_state())):
            self.start = _Start(self._recorded)

    def _replay(self, func: Callable[..., Any]) -> Any:
        assert self._replayed is not None
        call = next(self._replayed, None)
        if call is None or call.function != func:
            raise _DifferentCallsError
        return call.result

    def _is_watched(self, value: Any) -> bool:
        if isinstance(value, Tensor):
            return id(value) in self.watched
        if isinstance(value, (tuple, list)):
            return any(map(self._is_watched, value))
        return isinstance(value, Mapping) and any(map(self._is_watched, value.values()))

    def _get_random_state(self) -> list[Tensor]:
        own = random_state(self._device)
        return [torch.get_rng_state(), *([] if own is None else [own])]


def _kept(result: Any) -> Any:
    """The result of a call; a tensor that is no longer in use is replaced by an empty one, since nobody looks at it."""
    if not isinstance(result, weakref.ref):
        return result
    tensor = result()
    return torch.empty(0) if tensor is None else tensor
