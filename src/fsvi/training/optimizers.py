"""Optimisers and learning-rate schedules by name, by class, or by function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.methods.method import Method
from fsvi.validation import check_choice

Schedule = Callable[[float], float]
"""From the fraction of training done, 0..1, to a factor on the learning rate."""


def make_optimizer(method: Method, optimizer: Any, lr: float) -> Optimizer:
    """The optimiser for a method's parameters.

    `optimizer` is "adam", "sgd" (momentum 0.9), any `torch.optim` class, or a function from parameter groups to one.
    """
    own = method.own_optimizer(lr)
    if own is not None:
        return own
    groups = method.parameter_groups(lr)
    if isinstance(optimizer, str):
        check_choice("optimizer", optimizer, ("adam", "sgd"))
        if optimizer == "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=0.9)
        return torch.optim.Adam(groups, lr=lr, fused=True)
    if not callable(optimizer):
        raise InvalidInputError(f'optimizer={optimizer!r} must be "adam", "sgd" or a torch.optim class.')
    made = optimizer(groups)
    if not isinstance(made, Optimizer):
        raise InvalidInputError(f"optimizer made a {type(made).__name__}, not a torch.optim.Optimizer.")
    return made


def cosine(final: float = 0.05) -> Schedule:
    """From 1 to `final` along half a cosine, the paper's schedule."""
    return lambda done: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def make_schedule(schedule: str | Schedule | None) -> Schedule:
    """The schedule of a name ("cosine"), of a function, or of None (constant)."""
    if schedule is None:
        return lambda _: 1.0
    if isinstance(schedule, str):
        check_choice("schedule", schedule, ("cosine",))
        return cosine()
    return schedule
