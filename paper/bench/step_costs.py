"""Costs of training steps, measured in turn in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from paper.bench.memory import Memory, step_memory
from paper.bench.steps import BenchStep
from paper.bench.timing import Spread, interleave


@dataclass(frozen=True)
class StepCost:
    """The cost of a training step: in milliseconds, and as a ratio to the plain step in the same memory layout."""

    step: BenchStep
    ms: Spread
    ratio: Spread
    layout_gain: Spread | None
    """Speed relative to the same step with images in channels-first order."""
    memory: Memory | None
    memory_ratio: float | None
    """Memory added by training, as a ratio to that of the plain step."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        costs = asdict(self)
        return {**costs.pop("step"), "num_parameters": self.step.num_parameters, "limit": self.step.limit, **costs}


def measure_steps(steps: Iterable[BenchStep], rounds: int, memory_repeats: int = 0) -> list[StepCost]:
    """The costs of steps and of their plain steps, timed in turn.

    Args:
        steps: The steps.
        rounds: The number of measurements of each.
        memory_repeats: The number of processes in which memory is measured.
    """
    everything = dict.fromkeys(each for step in steps for each in (step.plain, step))
    seconds = interleave({step: step.make_action() for step in everything}, rounds)
    memories = {step: step_memory(step, memory_repeats) for step in everything} if memory_repeats else {}
    return [_step_cost(step, seconds, memories) for step in everything]


def _step_cost(
    step: BenchStep, seconds: Mapping[BenchStep, list[float]], memories: Mapping[BenchStep, Memory]
) -> StepCost:
    values, memory = seconds[step], memories.get(step)
    other = seconds.get(replace(step, channels_last=False)) if step.channels_last else None
    return StepCost(
        step=step,
        ms=Spread.of_milliseconds(values),
        ratio=Spread.of_ratio(values, seconds[step.plain]),
        layout_gain=None if other is None else Spread.of_ratio(other, values),
        memory=memory,
        memory_ratio=None if memory is None else memory.added / memories[step.plain].added,
    )
