"""The data, predictions and context points that the checks read, computed once for all of them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fsvi.cost.probe import members
from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Context, Dataset
from fsvi.likelihoods import Predictive
from fsvi.methods import Method
from fsvi.training import History
from fsvi.validation import check_inputs

_MOST_DATA = 1000
_MOST_POINTS = 128
"""for computations with many draws or with all pairs of points"""
_DRAWS = 20
_PUSHES = (2.0, 3.0)
"""factors on the distance from the mean of the data"""
_LITTLE, _MUCH = 0.02, 0.2
"""in nats"""


@dataclass(frozen=True)
class Evidence:
    """A method, data to check it on, and points of its context.

    Attributes:
        method: The trained method.
        x: Inputs.
        y: Their targets.
        context: Context points; None if the method has no context.
        history: What `fit` returned, if it is known.
        num_samples: Draws per prediction.
    """

    method: Method
    x: Tensor
    y: Tensor
    context: Tensor | None
    history: History | None
    num_samples: int

    @classmethod
    def gather(
        cls, method: Method, data: tuple[Any, Any], context: Any, history: History | None, num_samples: int
    ) -> Evidence:
        """Validate the arguments. Of large data, keep a subset spread evenly over all of it.

        Args:
            method: The trained method.
            data: A pair (x, y) of training examples.
            context: The context; None is the method's own.
            history: What `fit` returned, if it is known.
            num_samples: Draws per prediction.
        """
        x, y = method.check_batch(*data)
        chosen = _spread(len(x), _MOST_DATA)
        x, y = x[chosen], y[chosen]
        return cls(method, x, y, _context_points(method, context, x), history, num_samples)

    @property
    def members(self) -> list[Method]:
        """The members of an ensemble, or the method itself."""
        return members(self.method)

    @property
    def num_data(self) -> int:
        """The number of training examples; that of the data given if it is unknown."""
        return self.method.num_data or len(self.x)

    @cached_property
    def few(self) -> Tensor:
        """A subset of the inputs."""
        return self.x[_spread(len(self.x), _MOST_POINTS)]

    @cached_property
    def pushed(self) -> Tensor:
        """The same inputs, moved away from their mean."""
        center = self.few.mean(0, keepdim=True)
        return torch.cat([center + factor * (self.few - center) for factor in _PUSHES])

    @cached_property
    def prediction(self) -> Predictive:
        """The prediction at the data."""
        return self.predict(self.x)

    def predict(self, x: Tensor, num_samples: int = _DRAWS) -> Predictive:
        """The prediction at any inputs.

        Args:
            x: The inputs.
            num_samples: Draws per prediction.
        """
        return self.method.predict(x, num_samples)

    @cached_property
    def nll(self) -> float:
        """−log p(y|x), averaged over the data."""
        return -float(self.prediction.log_prob(self.y).mean())

    @cached_property
    def constant_nll(self) -> float | None:
        """The nll of the best constant prediction, such as class frequencies or one Gaussian; None if unknown."""
        return self.prediction.constant_nll(self.y)

    @cached_property
    def has_learned(self) -> bool:
        """Whether predictions beat the best constant by more than chance; True if no such constant is known.

        A method without training must beat it by a wide margin, because a random network may be right by luck.
        """
        if self.method.num_data is None or self.constant_nll is None:
            return self.has_learned_much
        logs = self.prediction.log_prob(self.y)
        error = float(logs.std()) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
        return self.constant_nll - self.nll > max(_LITTLE, error)

    @property
    def has_learned_much(self) -> bool:
        """Whether predictions beat the best constant by a wide margin; True if no such constant is known."""
        return self.constant_nll is None or self.constant_nll - self.nll > _MUCH


def distances(points: Tensor, data: Tensor, own: bool = False) -> Tensor:
    """The distance from each point to the nearest datum.

    Args:
        points: The points.
        data: The data.
        own: Whether the points are the data; then each one skips itself.
    """
    table = torch.cdist(points.double().flatten(1), data.double().flatten(1))
    return table.kthvalue(2 if own else 1, dim=1).values


def _context_points(method: Method, context: Any, x: Tensor) -> Tensor | None:
    """Points of the given context, else of the method's own; None if it has none or if its data were not saved."""
    if context is not None and not isinstance(context, Context):
        context = Dataset(check_inputs(context, method.dtype))
    if context is not None:
        return _sample(method, context, x)
    first = members(method)[0]
    own = getattr(first, "context", None)
    try:
        return None if own is None else _sample(method, own, x)
    except InvalidInputError:
        return None


def _sample(method: Method, context: Context, x: Tensor) -> Tensor:
    points = copy.copy(context).sample(_MOST_POINTS, x).to(x)
    if points.shape[1:] != x.shape[1:]:
        shapes = f"{tuple(points.shape[1:])}, but inputs have shape {tuple(x.shape[1:])}"
        raise InvalidInputError(f"context points have shape {shapes}: give a context of the inputs' shape.")
    return method.network.arranged(points)


def _spread(num: int, most: int) -> Tensor:
    return torch.linspace(0, num - 1, min(num, most)).round().long()
