"""Calling a model with inputs of any structure, other parameters and other modes, and finding its outputs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from fsvi.errors import HeadError
from fsvi.inputs import Bundle, Graphs, Inputs
from fsvi.networks.parameters import batch_norms

Output = str | int | Callable[[Any], Tensor]
"""Where a model's outputs are in what it returns: a key, an attribute, an index, or a function."""

_LOGITS = "logits"


def call(module: nn.Module, x: Inputs, tensors: Mapping[str, Tensor] | None) -> Any:
    """What the module returns for `x`, with `tensors` in place of its parameters and buffers of those names."""
    args, kwargs = ((x,), {}) if isinstance(x, Tensor) else _arguments(module, x)
    return module(*args, **kwargs) if not tensors else functional_call(module, tensors, args, kwargs)


def input_names(module: nn.Module, x: Inputs) -> list[str]:
    """The names of the inputs' tensors: keys, the arguments of the module's `forward`, or places such as "0.mask"."""
    if isinstance(x, Tensor):
        return ["input"]
    names = [name for name, _ in x.named_leaves()]
    parameters = inspect.signature(module.forward).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_flat = isinstance(x.tree, tuple) and all(isinstance(part, Tensor) for part in x.tree)
    return known[: len(names)] if is_flat and len(known) >= len(names) else names


def unwrap(returned: Any, output: Output | None) -> Any:
    """The outputs in what a model returned; without a statement where they are, the usual places are tried."""
    if output is None:
        return returned if isinstance(returned, Tensor) else _usual(returned)
    if callable(output):
        return output(returned)
    try:
        is_attribute = isinstance(output, str) and not isinstance(returned, Mapping)
        return getattr(returned, str(output)) if is_attribute else returned[output]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise HeadError(
            f"output={output!r} is not part of the {type(returned).__name__} that the network returns."
        ) from error


def _usual(returned: Any) -> Any:
    """`logits` by key or attribute, the only entry of a dictionary, or the first of a tuple."""
    if isinstance(returned, Mapping):
        only = next(iter(returned.values())) if len(returned) == 1 else returned
        return returned.get(_LOGITS, only)
    if hasattr(returned, _LOGITS):
        return getattr(returned, _LOGITS)
    is_tensor_first = isinstance(returned, (tuple, list)) and len(returned) > 0 and isinstance(returned[0], Tensor)
    return returned[0] if is_tensor_first else returned


def _arguments(module: nn.Module, x: Bundle) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tuple gives positional arguments. A dictionary gives named ones, or is the only argument as a whole.

    A batch of graphs is the argument if `forward` needs only one; otherwise its tensors are given by name.
    """
    if isinstance(x.tree, tuple):
        return x.tree, {}
    parameters = list(inspect.signature(module.forward).parameters.values())
    if isinstance(x, Graphs):
        needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        named = {p.name: x.tree[p.name] for p in parameters if p.name in x.tree}
        return ((x.tree,), {}) if len(needed) == 1 else ((), named)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    is_whole = len(parameters) == 1 and not takes_any and parameters[0].name not in x.tree
    return ((x.tree,), {}) if is_whole else ((), dict(x.tree))


# Other parameters -----------------------------------------------------------------------------------------------------


_Place = tuple[dict[str, Any], str, Any]
"""Where a tensor or a setting is kept, how it is called there, and what replaces it."""


@contextmanager
def _replaced(places: Sequence[_Place]) -> Iterator[None]:
    own = [store[name] for store, name, _ in places]
    try:
        for store, name, value in places:
            store[name] = value
        yield
    finally:
        for (store, name, _), value in zip(places, own, strict=True):
            store[name] = value


def functional_call(net: nn.Module, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Any) -> Any:
    """`net(*args, **kwargs)` with `tensors` in place of parameters and buffers of those names, wherever they occur.

    This does what `torch.func.functional_call` does. That one (seen with torch 2.13) never restores the tensors of a
    module with two names, because it treats them as two places to restore.
    """
    places = _places(net, tensors)
    with repeatable(lambda: _replaced(places)):
        return net(*args, **kwargs)


_EXPORTING: ContextVar[bool] = ContextVar("exporting", default=False)


def is_exporting() -> bool:
    """Whether this thread traces a graph to export; torch's own flag is one for all threads."""
    return _EXPORTING.get()


@contextmanager
def exporting() -> Iterator[None]:
    """A context in which functions are traced."""
    token = _EXPORTING.set(True)
    try:
        yield
    finally:
        _EXPORTING.reset(token)


def _places(net: nn.Module, tensors: Mapping[str, Tensor]) -> list[_Place]:
    """Every place in the network that holds a tensor of those names; one of a module with two names occurs once."""
    named = chain(net.named_parameters(remove_duplicate=False), net.named_buffers(remove_duplicate=False))
    values = {id(own): tensors[name] for name, own in named if name in tensors}
    stores = (store for module in net.modules() for store in (module._parameters, module._buffers))
    return [(store, name, values[id(own)]) for store in stores for name, own in store.items() if id(own) in values]


# Other modes ----------------------------------------------------------------------------------------------------------


def evaluating(net: nn.Module) -> AbstractContextManager[None]:
    """Put `net` into eval mode: no dropout, BatchNorm uses its running statistics. Each layer's mode is restored."""
    return repeatable(lambda: _replaced([(vars(module), "training", False) for module in net.modules()]))


def dropping(net: nn.Module) -> AbstractContextManager[None]:
    """Switch dropout on in a network in eval mode."""
    layers = [module for module in net.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    return _replaced([(vars(layer), "training", True) for layer in layers])


@contextmanager
def averaging_statistics(net: nn.Module, frozen: Collection[nn.Module] = ()) -> Iterator[None]:
    """Let BatchNorm's statistics become the average over the batches inside this context; other layers, and `frozen`
    ones, are in eval mode.
    """
    layers = [layer for layer in batch_norms(net) if layer not in frozen]
    for layer in layers:
        layer.reset_running_stats()
    momenta = [(vars(layer), "momentum", None) for layer in layers]
    modes = [(vars(layer), "training", True) for layer in layers]
    with evaluating(net), _replaced(momenta + modes):
        yield


# Gradient checkpoints -------------------------------------------------------------------------------------------------


# A checkpoint of `torch.utils.checkpoint` does not keep what a part of the network computes. It calls that part again
# during the backward pass, after drawn parameters or eval mode have been undone, so the gradient would silently belong
# to another pass.

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
            if self._depth > 1:
                return
            start = self._start = checkpoint._CheckpointFrame.__init__

            def remember(frame: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
                start(frame, _repeated(recompute), *args, **kwargs)

            checkpoint._CheckpointFrame.__init__ = remember  # type: ignore[assignment, method-assign]
            checkpoint.CheckpointFunction.apply = _newer  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                checkpoint._CheckpointFrame.__init__ = self._start  # type: ignore[method-assign]
                del checkpoint.CheckpointFunction.apply


def _newer(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


_FOLLOWING = _Following()
