"""A warning before training if it needs more memory than is free."""

from __future__ import annotations

import warnings

from torch import Tensor

from fsvi.cost.estimate import training_cost
from fsvi.errors import FSVIError
from fsvi.inputs import Inputs
from fsvi.machine import format_bytes, free_memory
from fsvi.methods.base import Method

_BYTES_EACH = 256
"""An upper bound on the bytes per parameter, example and position: a layer's output, the activations after it, their
gradients, and several passes."""


def warn_of_memory(method: Method, batch_size: int, x: Inputs) -> None:
    """Warn if training steps need more memory than is free.

    Args:
        method: The method.
        batch_size: The number of examples per step.
        x: Example inputs.
    """
    free = free_memory(method.device)
    if free is None or _most(method, batch_size, x) < free:
        return
    try:
        needed = training_cost(method, batch_size, x[:1]).added
    except (FSVIError, RuntimeError):
        return  # training will raise the same error, about the user's own data
    if needed > free:
        warnings.warn(
            f"training in batches of {batch_size} needs about {format_bytes(needed)} of memory, but only "
            f"{format_bytes(free)} are free: lower batch_size; fsvi.estimate_cost(method, batch_size) shows the cost.",
            stacklevel=3,
        )


def _most(method: Method, batch_size: int, x: Inputs) -> int:
    """An upper bound on the memory of a step, which spares small networks the trial steps."""
    positions = max(_positions(leaf) for leaf in ([x] if isinstance(x, Tensor) else x.leaves()))
    return _BYTES_EACH * sum(p.numel() for p in method.parameters()) * batch_size * positions


def _positions(x: Tensor) -> int:
    channels = min(x.shape[1:], default=1) if x.is_floating_point() else 1
    return x[0].numel() // channels
