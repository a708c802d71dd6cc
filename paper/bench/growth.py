"""How costs grow with the sizes of the network, of the context and of the prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paper.bench.predictions import BenchPrediction, measure_predictions
from paper.bench.step_costs import measure_steps
from paper.bench.steps import (
    DEPTHS,
    FSVI_METHODS,
    OUTPUTS,
    WIDTHS,
    BenchStep,
    classifying,
    deep,
    dropping,
    wide,
)

_BATCH_SIZE, _NUM_CONTEXT = 128, 32


@dataclass(frozen=True)
class Growth:
    """Costs as one size grows.

    Attributes:
        title: What is compared.
        label: The name of the size.
        sizes: The sizes.
        make: Makes what is measured, from a method's name and a size.
        methods: The methods that are measured.
    """

    title: str
    label: str
    sizes: tuple[int, ...]
    make: Callable[[str, int], BenchStep | BenchPrediction]
    methods: tuple[str, ...] = FSVI_METHODS

    def measure(self, rounds: int, most: int | None = None) -> dict[str, Any]:
        """The costs of every method at every size, timed in turn, and the memory of steps, as plain values.

        Args:
            rounds: The number of measurements of each.
            most: The number of sizes, from the smallest on; None takes all.
        """
        sizes = {self.make(method, size): size for method in self.methods for size in self.sizes[:most]}
        steps = [each for each in sizes if isinstance(each, BenchStep)]
        predictions = [each for each in sizes if isinstance(each, BenchPrediction)]
        costs: dict[BenchStep | BenchPrediction, dict[str, Any]] = {}
        costs |= {cost.step: cost.as_dict() for cost in measure_steps(steps, rounds, memory_repeats=1)}
        costs |= {cost.prediction: cost.as_dict() for cost in measure_predictions(predictions, rounds)}
        return {"rounds": rounds, "points": [{"size": size, **costs[what]} for what, size in sizes.items()]}


def _prediction(method: str, draws: int) -> BenchPrediction:
    return BenchPrediction(dropping("cnn") if method == "mc_dropout" else "cnn", method, draws, num_inputs=256)


GROWTHS = {
    "width": Growth(
        "A dense network with two hidden layers, B 128, K 32",
        "units per layer",
        WIDTHS,
        lambda method, size: BenchStep(wide(size), method, _BATCH_SIZE, _NUM_CONTEXT),
    ),
    "depth": Growth(
        "A dense network with 200 units per layer, B 128, K 32",
        "hidden layers",
        DEPTHS,
        lambda method, size: BenchStep(deep(size), method, _BATCH_SIZE, _NUM_CONTEXT),
    ),
    "context": Growth(
        "The CNN, B 128",
        "context points, K",
        (4, 8, 16, 32, 64, 128, 256),
        lambda method, size: BenchStep("cnn", method, _BATCH_SIZE, size),
    ),
    "outputs": Growth(
        "The CNN, B 128, K 32",
        "outputs",
        OUTPUTS,
        lambda method, size: BenchStep(classifying(size), method, _BATCH_SIZE, _NUM_CONTEXT),
    ),
    "draws": Growth(
        "Predictions of 256 images by the CNN",
        "draws",
        (1, 3, 10, 30, 100),
        _prediction,
        methods=("conditional", "last_layer", "mc_dropout"),
    ),
}
"""All of them, by the name of their section."""
