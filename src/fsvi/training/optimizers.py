"""Optimizers, given by name, class or function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.posteriors.mean_field import MeanField
from fsvi.validation import check_choice, check_fraction, check_positive, first_line

MakeOptimizer = Callable[[list[dict[str, Any]]], Optimizer]
"""A function from parameter groups, each with its learning rate, to an optimizer, such as a `torch.optim` class."""


@dataclass(frozen=True)
class _Decaying:
    """An optimizer whose weight decay acts on the network's point estimates only."""

    make: MakeOptimizer
    weight_decay: float

    def __call__(self, groups: list[dict[str, Any]]) -> Optimizer:
        return self.make(groups)


def adamw(weight_decay: float = 0.01) -> MakeOptimizer:
    """AdamW whose weight decay acts on point estimates only: `fit(..., optimizer=fsvi.training.adamw(0.05))`.

    Parameters with a distribution have a prior instead, and the noise of a likelihood has no reason to be one. Use it
    with `fit`, which knows the point estimates: an optimizer that you make of it yourself has no weight decay.

    Args:
        weight_decay: The weight decay.
    """
    make = partial(torch.optim.AdamW, weight_decay=0.0, fused=True)
    return _Decaying(make, check_positive("weight_decay", weight_decay, zero=True))


def sgd(momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0) -> MakeOptimizer:
    """SGD whose weight decay acts on the network's point estimates only, as that of `fsvi.training.adamw`.

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


def make_optimizer(make: MakeOptimizer, method: Method, lr: float) -> Optimizer:
    """The optimizer of a method's parameters; an error says why it cannot be used."""
    groups = [group for learner in method.learners() for group in learner.parameter_groups(lr)]
    if isinstance(make, _Decaying) and make.weight_decay:
        groups = _decaying(groups, method, make.weight_decay)
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


def _decaying(groups: list[dict[str, Any]], method: Method, weight_decay: float) -> list[dict[str, Any]]:
    """Every group as two: weights of the network that are points and no means of a posterior decay, others do not."""
    means = {id(p) for part in method.modules() if isinstance(part, MeanField) for p in part.means().values()}
    points = {id(p) for learner in method.learners() for p in learner.net.parameters()} - means
    halves = []
    for group in groups:
        decaying, others = ([p for p in group["params"] if (id(p) in points) == is_point] for is_point in (True, False))
        halves += [{**group, "params": decaying, "weight_decay": weight_decay}, {**group, "params": others}]
    return [half for half in halves if half["params"]]
