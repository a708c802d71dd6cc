"""Costs of training steps and predictions, measured side by side in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fsvi.experiments.bench.memory import Memory, step_memory
from fsvi.experiments.bench.steps import Step
from fsvi.experiments.bench.timing import Spread, interleave
from fsvi.methods import Method

_CHUNK = 512
"""How many inputs a forward pass takes at a time, as `predict` does."""


@dataclass(frozen=True)
class StepCost:
    """What a training step costs: in milliseconds, and as a ratio to the MAP step in the same memory layout."""

    step: Step
    ms: Spread
    ratio: Spread
    layout_gain: Spread | None
    """how many times as fast as the same step with images in channels-first order"""
    memory: Memory | None
    memory_ratio: float | None
    """memory added by training, as a ratio to the MAP step's"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        costs = asdict(self)
        return {**costs.pop("step"), "num_parameters": self.step.num_parameters, "limit": self.step.limit, **costs}


@dataclass(frozen=True)
class PredictionCost:
    """What a prediction costs: in milliseconds, and as a ratio to one forward pass of the network alone."""

    method: str
    num_samples: int
    num_images: int
    ms: Spread
    ratio: Spread


def measure_steps(steps: Iterable[Step], rounds: int, memory_repeats: int = 0) -> list[StepCost]:
    """The costs of the steps and of their MAP steps, timed in turn; memory in so many processes of their own each."""
    everything = dict.fromkeys(each for step in steps for each in (step.plain, step))
    seconds = interleave({step: step.make_action() for step in everything}, rounds)
    memories = {step: step_memory(step, memory_repeats) for step in everything} if memory_repeats else {}
    return [_step_cost(step, seconds, memories) for step in everything]


def measure_predictions(
    methods: Mapping[str, Method], plain: Method, draws: Iterable[tuple[str, int]], x: Tensor, rounds: int
) -> list[PredictionCost]:
    """The costs of predicting at `x` with so many draws of each method, beside a forward pass of `plain`'s network."""
    forward = ("forward", 1)
    actions: dict[tuple[str, int], Callable[[], Any]] = {forward: partial(_forward, plain, x)}
    actions |= {(name, num): partial(methods[name].predict, x, num_samples=num) for name, num in draws}
    seconds = interleave(actions, rounds)
    return [
        PredictionCost(name, num, len(x), _milliseconds(values), Spread.of_ratio(values, seconds[forward]))
        for (name, num), values in seconds.items()
    ]


def _step_cost(step: Step, seconds: Mapping[Step, list[float]], memories: Mapping[Step, Memory]) -> StepCost:
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
