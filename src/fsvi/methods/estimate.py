"""What training will cost, before it starts: a few small steps are counted and extrapolated.

A copy of the method makes steps with two and three examples, while the bytes alive after every operation are counted.
At each moment of a step these grow linearly with the batch, and at most quadratically with the context points; the peak
is the largest of all moments at full size. Multiplications are extrapolated in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.methods.ensemble import Ensemble
from fsvi.methods.function_space import FunctionSpaceMethod
from fsvi.methods.map import MAP
from fsvi.methods.metering import Meter
from fsvi.methods.method import Method
from fsvi.predictive import CategoricalPredictive
from fsvi.validation import check_count, check_inputs
from fsvi.variational import MeanField, RankOne

_RATE = 1e-6
_B, _K = 2, 4
"""the smallest step; with more context points than examples, which methods may draw from the batch in another way"""

_OVERHEAD = 1.35
"""What kernels and the allocator take beyond the tensors; on a CPU they were 1.2 to 1.6 times as much"""


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
    members = _members(method)
    return Estimate(
        parameters=sum(p.numel() for member in members for p in member.net.parameters()),
        stochastic_parameters=sum(_num_stochastic(member) for member in members),
        peak_memory=own.held + own.added,
        memory_ratio=(own.held + own.added) / (plain.held + plain.added),
        step_ratio=own.work / plain.work,
    )


def training_cost(method: Method, batch_size: int, x: Tensor) -> Cost:
    """What training `method` costs in batches of inputs like `x`; neither it nor any random state changes."""
    with torch.random.fork_rng(devices=[method.device] if method.device.type == "cuda" else []):
        probe = _Probe(method, x)
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


class _Step(NamedTuple):
    alive: list[int]
    work: int


class _Noise(Context):
    """Points of the inputs' shape, no two the same, in the place of any context: its data need not be copied."""

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """The batch, repeated, with noise; indices stay as they are."""
        x = batch[torch.arange(num, device=batch.device) % len(batch)]
        return x + torch.randn_like(x) if x.is_floating_point() else x


class _Probe:
    """A copy of a method, whose steps are counted."""

    def __init__(self, method: Method, x: Tensor) -> None:
        spaces = [member for member in _members(method) if isinstance(member, FunctionSpaceMethod)]
        self._method = copy.deepcopy(method, {id(space.context): _Noise() for space in spaces if space.context})
        self._spaces = [member for member in _members(self._method) if isinstance(member, FunctionSpaceMethod)]
        for space in self._spaces:
            space.context = _Noise()
        self.num_context = max((space.num_context for space in spaces), default=0)
        self._x = x
        self._method.begin(self._inputs(_B), num_data=len(x))
        self._method.train()
        groups = self._method.parameter_groups(_RATE)
        self._optimizer = self._method.own_optimizer(_RATE) or torch.optim.Adam(groups, fused=True)
        self._meter = Meter([*self._method.parameters(), *self._method.buffers()])
        self.held = self._meter.held

    def step(self, batch_size: int, num_context: int) -> _Step:
        """One training step, counted."""
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
        return _Step(self._meter.alive, self._meter.work)

    def _inputs(self, num: int) -> Tensor:
        return self._method.arranged(_Noise().sample(num, self._x))

    def _targets(self, num: int) -> Tensor:
        """What would be predicted by outputs of zero."""
        method = self._method
        p = method.likelihood.predictive(torch.zeros(1, num, method.num_outputs, dtype=method.dtype).to(method.device))
        y = p.labels() if isinstance(p, CategoricalPredictive) else p.mean
        return method.likelihood.check_targets(y, method.num_outputs)


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


def _members(method: Method) -> list[Method]:
    return method.members if isinstance(method, Ensemble) else [method]


def _plain(method: Method) -> MAP:
    return MAP(method.net, method.likelihood, head=method.split.head, channels_last=method.channels_last)


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
