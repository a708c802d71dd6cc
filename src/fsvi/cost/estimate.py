"""What training will cost, before it starts: a few small steps are counted and extrapolated.

A copy of the method makes steps with two and three examples, while the bytes alive after every operation are counted.
At each moment of a step these grow linearly with the batch, and at most quadratically with the context points; the peak
is the largest of all moments at full size. Multiplications are extrapolated in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsvi.cost.probe import Probe, members
from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.methods.function_space import FunctionSpaceMethod
from fsvi.methods.map import MAP
from fsvi.validation import check_count, check_inputs
from fsvi.variational import MeanField, RankOne

_B, _K = 2, 4
"""the smallest step; with more context points than examples, which methods may draw from the batch in another way"""

_OVERHEAD = 1.25
"""What kernels and the allocator take beyond the tensors; on a CPU they were 1.0 to 1.4 times as much"""


@dataclass(frozen=True)
class Estimate:
    """What training with Adam needs; the data themselves and the libraries are not counted.

    Attributes:
        parameters: Numbers in the network, or in all networks of an ensemble.
        stochastic_parameters: How many numbers training learns a distribution of.
        peak_memory: Bytes at most: parameters, gradients, the optimiser's state, and what a step creates.
        memory_ratio: The same as a multiple of what plain training (`MAP`) of one such network needs.
        step_ratio: A step's multiplications as a multiple of plain training's. In small networks a step is call
            overhead instead, and the multiple larger.
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
            f"{self.parameters:,} parameters, a distribution learned of {self.stochastic_parameters:,}; training needs "
            f"about {format_bytes(self.peak_memory)}, {self.memory_ratio:.2f} times as much as MAP, and a step costs "
            f"as much as {self.step_ratio:.2f} of MAP's."
        )


class Cost(NamedTuple):
    """Bytes held before the first step, bytes that steps add at most, and the multiplications of one."""

    held: int
    added: int
    work: float


def estimate(method: Method, batch_size: int, x: Any = None) -> Estimate:
    """What training `method` costs; `x` are example inputs, needed where it has seen none."""
    check_count("batch_size", batch_size)
    x = _example_inputs(method) if x is None else check_inputs(x, method.dtype)
    own = training_cost(method, batch_size, x)
    plain = own if type(method) is MAP else training_cost(_plain(method), batch_size, x)
    return Estimate(
        parameters=sum(p.numel() for member in members(method) for p in member.net.parameters()),
        stochastic_parameters=sum(_num_stochastic(member) for member in members(method)),
        peak_memory=own.held + own.added,
        memory_ratio=(own.held + own.added) / (plain.held + plain.added),
        step_ratio=own.work / plain.work,
    )


def training_cost(method: Method, batch_size: int, x: Tensor) -> Cost:
    """What training `method` costs in batches of inputs like `x`; neither it nor any random state changes."""
    with torch.random.fork_rng(devices=[method.device] if method.device.type == "cuda" else []):
        probe = Probe(method, x)
        probe.step(_B, _K)  # makes the optimiser's state
        steps = [probe.step(_B, _K), probe.step(_B + 1, _K)]
        if probe.num_context:
            steps += [probe.step(_B, _K + 1), probe.step(_B, _K + 2)]
    batch, points = batch_size - _B, probe.num_context - _K
    moments = zip(*_aligned([step.alive for step in steps]), strict=True)
    added = max(_extrapolate(values, batch, points) for values in moments)
    return Cost(probe.held, round(_OVERHEAD * added), _extrapolate([step.work for step in steps], batch, points))


def format_bytes(num: float) -> str:
    """A size for people: "1.5 GB"."""
    for unit in ("bytes", "kB", "MB"):
        if num < 1000:
            return f"{num:.3g} {unit}"
        num /= 1000
    return f"{num:.3g} GB"


def _aligned(timelines: Sequence[list[int]]) -> Sequence[list[int]]:
    """Timelines of as many moments each; where the steps did not do the same things, their peaks alone."""
    same = len({len(timeline) for timeline in timelines}) == 1
    return timelines if same else [[max(timeline)] for timeline in timelines]


def _extrapolate(values: Sequence[int], batch: int, points: int) -> float:
    """Newton's formula: linear in the examples beyond the least step's, quadratic in the context points beyond."""
    least, wider, *more = values
    total = float(least + batch * (wider - least))
    if more:
        one, two = more
        total += points * (one - least) + points * (points - 1) / 2 * (two - 2 * one + least)
    return total


def _plain(method: Method) -> MAP:
    return MAP(method.network, method.likelihood)


def _num_stochastic(method: Method) -> int:
    """The numbers of learned distributions; those of a prior are not learned."""
    learned = [module for module in method.modules() if isinstance(module, (MeanField, RankOne))]
    return sum(module.mean.numel() for module in learned if module.mean.requires_grad)


def _example_inputs(method: Method) -> Tensor:
    """An input of the shape that the method has seen, or that its context has."""
    if method._seen is not None:
        return torch.zeros(1, *method._seen, dtype=method.dtype)
    context = method.context if isinstance(method, FunctionSpaceMethod) else None
    example = None if context is None else context.example()
    if example is None:
        raise InvalidInputError("the shape of the inputs is not known before training: pass x=, some example inputs.")
    return check_inputs(example, method.dtype)
