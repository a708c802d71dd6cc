"""What the benchmark's figures ought to be, and whether they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsvi.experiments.bench.step_costs import PredictionCost, StepCost

_STEP_RATIOS = {"jvp": 1.9, "conditional": 1.4, "last_layer": 1.4}
_LAYOUT_GAIN = 1.3
_MEMORY_RATIO = 2.0
_PREDICTION_RATIO = 1.3


@dataclass(frozen=True)
class Goal:
    """A measured value and its bound.

    Attributes:
        what: What was measured.
        value: The value.
        bound: The bound.
        at_least: Whether the bound is a lower one.
    """

    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure keeps to its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def find_goals(steps: Iterable[StepCost], predictions: Iterable[PredictionCost]) -> list[Goal]:
    """The goals for FSVI's steps in the default layout, and for last-layer prediction.

    Args:
        steps: The measured steps.
        predictions: The measured predictions.
    """
    fsvi_steps = [cost for cost in steps if cost.step.channels_last and cost.step.method in _STEP_RATIOS]
    return [goal for cost in fsvi_steps for goal in _step_goals(cost)] + [
        Goal(f"last-layer prediction, {cost.num_samples} draws ÷ forward pass", cost.ratio.median, _PREDICTION_RATIO)
        for cost in predictions
        if cost.method == "last_layer"
    ]


def _step_goals(cost: StepCost) -> Iterator[Goal]:
    name = f"{cost.step.network}, {cost.step.method} step"
    if cost.step.network == "cnn":
        yield Goal(f"{name} ÷ MAP step", cost.ratio.median, _STEP_RATIOS[cost.step.method])
        if cost.layout_gain is not None:
            yield Goal(f"{name}: gain of channels_last", cost.layout_gain.median, _LAYOUT_GAIN, at_least=True)
    elif cost.memory_ratio is not None:
        yield Goal(f"{name}: memory ÷ MAP's", cost.memory_ratio, _MEMORY_RATIO)
