"""The cost of training, extrapolated from a few small steps before training starts.

A copy of the method makes steps with two and three examples. A meter counts the bytes that are alive after every
operation. At each moment of a step, this number grows linearly with the batch size and at most quadratically with the
number of context points. The peak is the maximum over all moments at full size. Multiplications are extrapolated in the
same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsvi.cost.probe import Probe, members
from fsvi.errors import InvalidInputError
from fsvi.machine import format_bytes
from fsvi.methods.base import Method
from fsvi.methods.map import MAP
from fsvi.networks.devices import forked_random
from fsvi.validation import check_count, check_inputs
from fsvi.posteriors import MeanField, RankOne

_B, _K = 2, 4
"""Examples and context points of the smallest step. More points than examples, because some contexts draw from the
batch, and do so in another way if the batch is large enough."""

_OVERHEAD = 1.25
"""Measured memory divided by the memory of the tensors; on a CPU it was between 1.0 and 1.4."""


@dataclass(frozen=True)
class CostEstimate:
    """The cost of training with Adam, without the data and the libraries.

    Attributes:
        parameters: The number of parameters of the network, or of all networks of an ensemble.
        stochastic_parameters: The number of parameters that have a learned distribution.
        peak_memory: Peak memory in bytes: parameters, gradients, optimizer state, and the tensors of a step.
        memory_ratio: Peak memory divided by that of plain training (`MAP`) of one such network.
        step_ratio: Multiplications of a step divided by those of plain training. In small networks, call overhead
            dominates and the measured ratio is larger.
    """

    parameters: int
    stochastic_parameters: int
    peak_memory: int
    memory_ratio: float
    step_ratio: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {self.stochastic_parameters:,} of them with a learned distribution; "
            f"training needs about {format_bytes(self.peak_memory)}, {self.memory_ratio:.2f} times as much as MAP, "
            f"and a step costs {self.step_ratio:.2f} times as much."
        )


class TrainingCost(NamedTuple):
    """The cost of training.

    Attributes:
        held: Bytes held before the first step.
        added: The most bytes that a step adds.
        work: The multiplications of a step.
    """

    held: int
    added: int
    work: float


def estimate_cost(method: Method, batch_size: int, x: Any = None) -> CostEstimate:
    """Estimate the memory and the time that training needs, also as multiples of plain training's (`MAP`).

    Neither the method nor any random state changes.

    Args:
        method: The method, before or after training.
        batch_size: The number of examples per step.
        x: Example inputs. None is enough if the method has seen data or if its context has points.
    """
    check_count("batch_size", batch_size)
    x = _example_inputs(method) if x is None else check_inputs(x, method.dtype)
    own = training_cost(method, batch_size, x)
    plain = own if type(method) is MAP else training_cost(_plain(method), batch_size, x)
    return CostEstimate(
        parameters=sum(p.numel() for member in members(method) for p in member.net.parameters()),
        stochastic_parameters=sum(_num_stochastic(member) for member in members(method)),
        peak_memory=own.held + own.added,
        memory_ratio=(own.held + own.added) / (plain.held + plain.added),
        step_ratio=own.work / plain.work,
    )


def training_cost(method: Method, batch_size: int, x: Tensor) -> TrainingCost:
    """The cost of training; neither the method nor any random state changes.

    Args:
        method: The method.
        batch_size: The number of examples per step.
        x: Example inputs.
    """
    with forked_random(method.device):
        probe = Probe(method, x)
        probe.step(_B, _K)  # creates the optimizer's state
        steps = [probe.step(_B, _K), probe.step(_B + 1, _K)]
        if probe.num_context:
            steps += [probe.step(_B, _K + 1), probe.step(_B, _K + 2)]
    batch, points = batch_size - _B, probe.num_context - _K
    moments = zip(*_aligned([step.alive for step in steps]), strict=True)
    added = max(_extrapolate(values, batch, points) for values in moments)
    return TrainingCost(
        probe.held, round(_OVERHEAD * added), _extrapolate([step.work for step in steps], batch, points)
    )


def _aligned(timelines: Sequence[list[int]]) -> Sequence[list[int]]:
    """The timelines if they all have the same number of moments, else only their peaks."""
    same = len({len(timeline) for timeline in timelines}) == 1
    return timelines if same else [[max(timeline)] for timeline in timelines]


def _extrapolate(values: Sequence[int], batch: int, points: int) -> float:
    """Newton's formula: linear in additional examples, quadratic in additional context points."""
    least, wider, *more = values
    total = float(least + batch * (wider - least))
    if more:
        one, two = more
        total += points * (one - least) + points * (points - 1) / 2 * (two - 2 * one + least)
    return total


def _plain(method: Method) -> MAP:
    return MAP(method.network, method.likelihood)


def _num_stochastic(method: Method) -> int:
    """The number of parameters with a learned distribution; a prior's distributions are not learned."""
    learned = [module for module in method.modules() if isinstance(module, (MeanField, RankOne))]
    return sum(module.mean.numel() for module in learned if module.mean.requires_grad)


def _example_inputs(method: Method) -> Tensor:
    """An input of the shape that the method has seen or that its context has."""
    if isinstance(method.seen_shape, torch.Size):
        return torch.zeros(1, *method.seen_shape, dtype=method.dtype)
    context = getattr(method, "context", None)
    example = None if context is None else context.example()
    if example is None:
        raise InvalidInputError("the shape of the inputs is unknown before training: pass x=, some example inputs.")
    return check_inputs(example, method.dtype)
