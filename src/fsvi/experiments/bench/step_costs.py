"""Costs of training steps and predictions, measured in turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fsvi.experiments.bench.memory import Memory, step_memory
from fsvi.experiments.bench.steps import BenchStep
from fsvi.experiments.bench.timing import Spread, interleave
from fsvi.methods import Method

_CHUNK = 512
"""Inputs per forward pass, as in `predict`."""


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step: in milliseconds, and as a ratio to the MAP step in the same memory layout."""

    step: BenchStep
    ms: Spread
    ratio: Spread
    layout_gain: Spread | None
    """Speed relative to the same step with images in channels-first order."""
    memory: Memory | None
    memory_ratio: float | None
    """Memory added by training, as a ratio to that of the MAP step."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        costs = asdict(self)
        return {**costs.pop("step"), "num_parameters": self.step.num_parameters, "limit": self.step.limit, **costs}


@dataclass(frozen=True)
class PredictionCost:
    """The cost of a prediction.

    Attributes:
        method: The method's name.
        num_samples: Draws per prediction.
        num_images: Images per prediction.
        ms: Milliseconds.
        ratio: The ratio to one forward pass of the network.
    """

    method: str
    num_samples: int
    num_images: int
    ms: Spread
    ratio: Spread


def measure_steps(steps: Iterable[BenchStep], rounds: int, memory_repeats: int = 0) -> list[StepCost]:
    """The costs of steps and of their MAP steps, timed in turn.

    Args:
        steps: The steps.
        rounds: The number of measurements of each.
        memory_repeats: The number of processes in which memory is measured.
    """
    everything = dict.fromkeys(each for step in steps for each in (step.plain, step))
    seconds = interleave({step: step.make_action() for step in everything}, rounds)
    memories = {step: step_memory(step, memory_repeats) for step in everything} if memory_repeats else {}
    return [_step_cost(step, seconds, memories) for step in everything]


def measure_predictions(
    methods: Mapping[str, Method], plain: Method, draws: Iterable[tuple[str, int]], x: Tensor, rounds: int
) -> list[PredictionCost]:
    """The costs of predictions, and of a forward pass.

    Args:
        methods: The methods, by name.
        plain: The method whose network makes the forward pass.
        draws: Pairs of a method's name and a number of draws.
        x: Inputs.
        rounds: The number of measurements of each.
    """
    forward = ("forward", 1)
    actions: dict[tuple[str, int], Callable[[], Any]] = {forward: partial(_forward, plain, x)}
    actions |= {(name, num): partial(methods[name].predict, x, num_samples=num) for name, num in draws}
    seconds = interleave(actions, rounds)
    return [
        PredictionCost(name, num, len(x), _milliseconds(values), Spread.of_ratio(values, seconds[forward]))
        for (name, num), values in seconds.items()
    ]


def _step_cost(
    step: BenchStep, seconds: Mapping[BenchStep, list[float]], memories: Mapping[BenchStep, Memory]
) -> StepCost:
    values, memory = seconds[step], memories.get(step)
    other = seconds.get(replace(step, channels_last=False)) if step.channels_last else None
    return StepCost(
        step=step,
        ms=_milliseconds(values),
        ratio=Spread.of_ratio(values, seconds[step.plain]),
        layout_gain=None if other is None else Spread.of_ratio(other, values),
        memory=memory,
        memory_ratio=None if memory is None else memory.added / memories[step.plain].added,
    )


def _forward(method: Method, x: Tensor) -> None:
    method.eval()
    with torch.no_grad():
        for chunk in x.split(_CHUNK):
            method.network(method.network.arranged(chunk))


def _milliseconds(seconds: list[float]) -> Spread:
    return Spread.of([1e3 * value for value in seconds])
