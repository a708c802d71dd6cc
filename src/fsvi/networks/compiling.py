"""torch.compile for the passes of a network in training.

What is compiled is the user's model as a function of its parameters and inputs, because that is what every method
calls. Draws, divergences and updates stay as they are. Passes that torch.compile cannot follow are not compiled: those
inside derivatives and vmap of `torch.func`, and those of modules with hooks.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.functional import is_transformed

INDUCTOR = "inductor"
_COMPILERS = ("g++", "clang++", "c++")
_COMPILED: WeakKeyDictionary[nn.Module, Compiled] = WeakKeyDictionary()


class Compiled:
    """A module's forward pass, compiled when it is first called with inputs of a new shape.

    Args:
        module: The module.
        backend: A backend of torch.compile.

    Attributes:
        is_used: Whether it was called.
    """

    is_used = False

    def __init__(self, module: nn.Module, backend: str) -> None:
        def run(tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return torch.func.functional_call(module, dict(tensors), args, kwargs, tie_weights=False)

        # torch counts compilations per code object; with one of its own, other networks do not use up the limit
        own = FunctionType(run.__code__.replace(), run.__globals__, "run", None, run.__closure__)
        # "fallback_random" draws dropout masks from torch's generator, as `F.dropout` does. Shapes are not symbols, so
        # that a result does not depend on which shapes came before.
        options: dict[str, Any] | None = {"fallback_random": True} if backend == INDUCTOR else None
        self._run: Callable[..., Any] = torch.compile(own, backend=backend, dynamic=False, options=options)

    def __call__(self, tensors: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns with `tensors` in place of its own."""
        self.is_used = True
        with warnings.catch_warnings():
            # torch.compile looks at the `grad` of every tensor that it is given, drawn parameters too.
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            return self._run(tensors, args, kwargs)


def compiled(module: nn.Module) -> Compiled | None:
    """The compiled forward pass if `module` has one that can be used here: with gradients, outside of torch.func."""
    found = _COMPILED.get(module)
    if found is None or not torch.is_grad_enabled() or _is_intercepted() or _has_hooks(module):
        return None
    return found


def compile_module(module: nn.Module, backend: str = INDUCTOR) -> None:
    """Let passes of `module` that need gradients be compiled from now on.

    Args:
        module: The module.
        backend: A backend of torch.compile; "inductor" needs a C++ compiler on a CPU.
    """
    if backend not in torch._dynamo.list_backends(exclude_tags=()):
        raise InvalidInputError(f"compile={backend!r} must be True or a backend of torch.compile, such as 'inductor'.")
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    if backend == INDUCTOR and on_cpu and not has_compiler():
        raise InvalidInputError(
            "compile=True needs a C++ compiler, and none is on the PATH: install g++, or leave compile out."
        )
    _COMPILED[module] = Compiled(module, backend)


def is_compilation_used(module: nn.Module) -> bool:
    """Whether a pass of `module` was compiled since `compile_module`."""
    found = _COMPILED.get(module)
    return found is not None and found.is_used


def uncompile_module(module: nn.Module) -> None:
    """Do not compile passes of `module` any more."""
    _COMPILED.pop(module, None)


def has_compiler() -> bool:
    """Whether there is a C++ compiler: the one that CXX names, or a common one."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or _COMPILERS[0], *_COMPILERS))


@contextmanager
def timing_compilation(add: Callable[[float], None]) -> Iterator[None]:
    """Give the seconds that torch spends on each compilation to `add`."""
    from torch._dynamo.callback import callback_handler

    started: list[float] = []

    def start(*_: Any) -> None:
        started.append(perf_counter())

    def end(*_: Any) -> None:
        if started:
            add(perf_counter() - started.pop())

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def _is_intercepted() -> bool:
    """Whether a transform of torch.func or a mode that replaces functions is active."""
    return is_transformed() or torch._C._len_torch_function_stack() > 0


def _has_hooks(module: nn.Module) -> bool:
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
