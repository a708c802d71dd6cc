"""What the benchmark's figures ought to be, and whether they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from paper.bench.predictions import PredictionCost
from paper.bench.step_costs import StepCost
from paper.bench.steps import FSVI_METHODS

_STEP_RATIOS = {
    "cnn": (1.8, 1.3, 1.25),
    "resnet18": (1.85, 1.3, 1.27),
    "transformer": (2.0, 1.35, 1.28),
    "mlp 100": (2.0, 2.0, 2.0),
}
"""The largest ratio to a plain step, for each of `FSVI_METHODS`."""
_MEMORY_RATIOS = {"resnet18": 1.7}
_LAYOUT_GAIN = 1.3
_PREDICTION_RATIO = 1.3
_METHOD_RATIOS = {
    ("mc-dropout",): 1.1,
    ("mfvi",): 1.1,
    ("swag",): 1.02,
    ("rank1",): 1.2,
    ("ivon", "vogn"): 1.1,
    ("fbnn",): 15.0,
}
"""The largest ratio of other methods' steps to a plain step; of several methods, the best counts."""


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


def step_goals(costs: Iterable[StepCost]) -> list[Goal]:
    """The goals for FSVI's steps in the default layout.

    Args:
        costs: The measured steps.
    """
    ours = [cost for cost in costs if cost.step.channels_last and cost.step.method in FSVI_METHODS]
    return [goal for cost in ours for goal in _step_goals(cost)]


def prediction_goals(costs: Iterable[PredictionCost]) -> list[Goal]:
    """The goals for last-layer prediction.

    Args:
        costs: The measured predictions.
    """
    return [
        Goal(
            f"last-layer prediction, {cost.prediction.num_samples} draws ÷ forward pass",
            cost.ratio.median,
            _PREDICTION_RATIO,
        )
        for cost in costs
        if cost.prediction.method == "last_layer"
    ]


def method_goals(ratios: Mapping[str, float]) -> list[Goal]:
    """The goals for the steps of other methods.

    Args:
        ratios: The measured ratios to a plain step, by the method's name.
    """
    return [
        Goal(f"{' or '.join(names)} step ÷ plain step", min(ratios[name] for name in names if name in ratios), bound)
        for names, bound in _METHOD_RATIOS.items()
        if any(name in ratios for name in names)
    ]


def _step_goals(cost: StepCost) -> Iterator[Goal]:
    network = cost.step.network
    name = f"{network}, {cost.step.method} step"
    if network in _STEP_RATIOS:
        bound = _STEP_RATIOS[network][FSVI_METHODS.index(cost.step.method)]
        yield Goal(f"{name} ÷ plain step", cost.ratio.median, bound)
    if network in _MEMORY_RATIOS and cost.memory_ratio is not None:
        yield Goal(f"{name}: memory ÷ plain step's", cost.memory_ratio, _MEMORY_RATIOS[network])
    if cost.layout_gain is not None:
        yield Goal(f"{name}: gain of channels_last", cost.layout_gain.median, _LAYOUT_GAIN, at_least=True)
