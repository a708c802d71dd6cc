"""Small, metered training steps on a copy of a method."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor

from fsvi.cost.metering import Meter
from fsvi.functions.contexts import Context
from fsvi.methods.base import Method
from fsvi.methods.ensemble import Ensemble
from fsvi.methods.function_space import FunctionSpace

_RATE = 1e-6


class MeteredStep(NamedTuple):
    """A metered step; see `Meter`.

    Attributes:
        alive: The bytes alive after each operation.
        work: The step's work.
    """

    alive: list[int]
    work: int


class _Noise(Context):
    """Distinct points of the inputs' shape. They replace any context, so that its data are not copied."""

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """The batch, repeated, with noise; integer inputs stay as they are."""
        x = batch[torch.arange(num, device=batch.device) % len(batch)]
        return x + torch.randn_like(x) if isinstance(x, Tensor) and x.is_floating_point() else x


class Probe:
    """A copy of a method whose steps are metered.

    Args:
        method: The method, which is copied.
        x: Example inputs.
    """

    def __init__(self, method: Method, x: Tensor) -> None:
        spaces = _function_spaces(method)
        self._method = copy.deepcopy(method, {id(space.context): _Noise() for space in spaces if space.context})
        self._spaces = _function_spaces(self._method)
        for space in self._spaces:
            space.context = _Noise()
        self.num_context = max((space.num_context for space in spaces), default=0)
        self._x = x
        self._method.begin(self._inputs(2), num_data=len(x))
        self._method.train()
        groups = self._method.parameter_groups(_RATE)
        self._optimizer = self._method.own_optimizer(_RATE) or torch.optim.Adam(groups, fused=True)
        own = [p for module in self._method.modules() for p in module.parameters(recurse=False)]
        self._meter = Meter([*own, *self._method.buffers()])
        self.held = self._meter.held

    def step(self, batch_size: int, num_context: int) -> MeteredStep:
        """One metered training step.

        Args:
            batch_size: The number of examples.
            num_context: The number of context points.
        """
        for space in self._spaces:
            space.num_context = num_context
        self._meter.restart()
        with self._meter:
            x = self._inputs(batch_size)
            y = self._targets(batch_size)
            self._optimizer.zero_grad(set_to_none=True)
            self._method.backward(x, y)
            self._optimizer.step()
            self._method.after_step()
        return MeteredStep(self._meter.alive, self._meter.work)

    def _inputs(self, num: int) -> Tensor:
        return self._method.network.arranged(_Noise().sample(num, self._x))

    def _targets(self, num: int) -> Tensor:
        """Valid targets: the prediction for outputs of zero."""
        method = self._method
        positions = method.network.layout.positions
        shape = (1, num * math.prod(positions), method.num_outputs)
        p = method.likelihood.predictive(torch.zeros(shape, dtype=method.dtype).to(method.device))
        y = method.likelihood.check_targets(p.point(), method.num_outputs)
        return y.unflatten(0, (num, *positions)) if positions else y


def _function_spaces(method: Method) -> list[FunctionSpace]:
    """The parts of a method, or of an ensemble's members, that have a context."""
    return [module for module in method.modules() if isinstance(module, FunctionSpace)]


def members(method: Method) -> list[Method]:
    """The members of an ensemble, or the method itself."""
    return method.members if isinstance(method, Ensemble) else [method]
