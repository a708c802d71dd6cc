"""Calling a model with inputs of any structure, and finding the outputs in what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from fsvi.errors import HeadError, InvalidInputError
from fsvi.inputs import Bundle, Graphs, Inputs
from fsvi.networks.functional import functional_call

Output = str | int | Callable[[Any], Tensor]
"""Where a model's outputs are in what it returns: a key, an attribute, an index, or a function."""

_LOGITS = "logits"


def call(module: nn.Module, x: Inputs, tensors: Mapping[str, Tensor] | None) -> Any:
    """What the module returns for `x`, with `tensors` in place of its parameters and buffers of those names."""
    args, kwargs = ((x,), {}) if isinstance(x, Tensor) else _arguments(module, x)
    return module(*args, **kwargs) if not tensors else functional_call(module, tensors, args, kwargs)


def check_arguments(module: nn.Module, x: Inputs) -> None:
    """Refuse structured inputs that do not fit the arguments of the module's `forward`, by name."""
    if isinstance(x, Tensor):
        return
    args, kwargs = _arguments(module, x)
    parameters = inspect.signature(module.forward).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    odd = [name for name in kwargs if name not in known]
    if odd and not takes_any:
        raise InvalidInputError(
            f"inputs have the key {odd[0]!r}, which the network's forward does not take: it takes {', '.join(known)}."
        )
    needed = [p.name for p in parameters if p.default is p.empty and p.name in known][len(args) :]
    missing = [name for name in needed if name not in kwargs]
    if missing:
        given = ", ".join(map(repr, kwargs)) or f"{len(args)} parts"
        raise InvalidInputError(f"inputs have no {missing[0]!r}, which the network's forward needs: there are {given}.")
    if len(args) > len(known) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise InvalidInputError(f"inputs have {len(args)} parts, but the network's forward takes {len(known)}.")


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
