"""Optimizers and learning-rate schedules, given by name, class or function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.validation import check_choice, check_fraction, check_positive, first_line

Schedule = Callable[[float], float]
"""A function from the fraction of training done, 0..1, to a factor on the learning rate."""

MakeOptimizer = Callable[[list[dict[str, Any]]], Optimizer]
"""A function from parameter groups, each with its learning rate, to an optimizer, such as a `torch.optim` class."""


@dataclass(frozen=True)
class _Decaying:
    """An optimizer whose weight decay acts on the network's point estimates only.

    Attributes:
        make: Makes the optimizer, without weight decay, from parameter groups.
        weight_decay: The weight decay.
    """

    make: MakeOptimizer
    weight_decay: float

    def __call__(self, groups: list[dict[str, Any]]) -> Optimizer:
        return self.make(groups)


def adamw(weight_decay: float = 0.01) -> MakeOptimizer:
    """AdamW whose weight decay acts on the network's point estimates only: `fit(..., optimizer=fsvi.adamw(0.05))`.

    Parameters with a distribution have a prior instead, and the noise of a likelihood has no reason to be one. Use it
    with `fit`, which knows the point estimates: an optimizer that you make of it yourself has no weight decay.

    Args:
        weight_decay: The weight decay.
    """
    make = partial(torch.optim.AdamW, weight_decay=0.0, fused=True)
    return _Decaying(make, check_positive("weight_decay", weight_decay, zero=True))


def sgd(momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0) -> MakeOptimizer:
    """SGD whose weight decay acts on the network's point estimates only, as that of `fsvi.adamw`.

    Args:
        momentum: The momentum, 0 or more and below 1.
        nesterov: Use Nesterov's momentum, which needs a momentum above 0.
        weight_decay: The weight decay; this multiple of the weights is added to the gradient.
    """
    check_fraction("momentum", momentum)
    if nesterov and momentum == 0:
        raise InvalidInputError("momentum=0 leaves nothing for nesterov=True: use a momentum above 0, such as 0.9.")
    make = partial(torch.optim.SGD, momentum=momentum, nesterov=nesterov)
    return _Decaying(make, check_positive("weight_decay", weight_decay, zero=True))


_OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "adamw": adamw(),
    "sgd": sgd(),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def check_optimizer(optimizer: str | MakeOptimizer) -> MakeOptimizer:
    """The function behind a name such as "adam" or "sgd" (momentum 0.9), a `torch.optim` class or a function."""
    if callable(optimizer):
        return optimizer
    if not isinstance(optimizer, str):
        raise InvalidInputError(f"optimizer={optimizer!r} must be a name, a torch.optim class or a function.")
    return _OPTIMIZERS[check_choice("optimizer", optimizer, _OPTIMIZERS)]


def make_optimizer(
    make: MakeOptimizer, groups: list[dict[str, Any]], points: Collection[nn.Parameter] = ()
) -> Optimizer:
    """The optimizer of parameter groups; an error says why it cannot be used.

    Args:
        make: What `check_optimizer` returned.
        groups: Parameter groups with their learning rates.
        points: The parameters on which weight decay acts, if `make` is `adamw` or `sgd`.
    """
    if isinstance(make, _Decaying) and make.weight_decay:
        groups = _split(groups, {id(p) for p in points}, make.weight_decay)
    try:
        made = make(groups)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"optimizer={make!r} cannot be made: {first_line(error)}.") from error
    if not isinstance(made, Optimizer):
        raise InvalidInputError(f"optimizer={make!r} made a {type(made).__name__}, not a torch.optim.Optimizer.")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInputError(f"{type(made).__name__} needs several losses per step: use a stochastic optimizer.")
    return made


def _split(groups: list[dict[str, Any]], points: set[int], weight_decay: float) -> list[dict[str, Any]]:
    """Every group as two: the parameters that decay, and the others."""
    halves = []
    for group in groups:
        decays = [p for p in group["params"] if id(p) in points]
        others = [p for p in group["params"] if id(p) not in points]
        halves += [{**group, "params": decays, "weight_decay": weight_decay}, {**group, "params": others}]
    return [half for half in halves if half["params"]]


def cosine(final: float = 0.05) -> Schedule:
    """The paper's schedule: from 1 to `final` along half a cosine.

    Args:
        final: The factor on the learning rate at the end of training.
    """
    return lambda done: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def make_schedule(schedule: str | Schedule | None) -> Schedule:
    """The schedule of a name ("cosine"), of a function, or of None (constant)."""
    if schedule is None:
        return lambda _: 1.0
    if isinstance(schedule, str):
        check_choice("schedule", schedule, ("cosine",))
        return cosine()
    if not callable(schedule):
        raise InvalidInputError(
            f'schedule={schedule!r} must be "cosine", None, a function, or a function that makes a torch scheduler.'
        )
    for done in (0.0, 0.5, 1.0):
        check_positive(f"schedule({done})", schedule(done), zero=True)
    return schedule
