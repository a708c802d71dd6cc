"""The predictions that the benchmark compares, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fsvi.inputs import Inputs
from fsvi.methods import Method
from paper.bench.by_hand import plain_forward
from paper.bench.peers import PREDICTIONS
from paper.bench.steps import BenchStep, training_action
from paper.bench.timing import Spread, interleave

FORWARD = "forward"
"""The prediction that all others are compared with: a forward pass of the network."""

_BATCH_SIZE, _NUM_CONTEXT = 64, 16
"""Sizes of the step that is made before a prediction; they do not change its cost."""


@dataclass(frozen=True)
class BenchPrediction:
    """One prediction: class probabilities, averaged over draws.

    Attributes:
        network: A key of `steps.NETWORKS`.
        method: "forward", a method of `BenchStep`, or a key of `peers.PREDICTIONS`.
        num_samples: The number of draws.
        num_inputs: The number of inputs.
    """

    network: str
    method: str
    num_samples: int
    num_inputs: int

    @property
    def forward(self) -> BenchPrediction:
        """The forward pass that this one is compared with."""
        return replace(self, method=FORWARD, num_samples=1)

    def make_action(self) -> Callable[[], Any]:
        """A function that predicts random inputs, after one training step."""
        step = BenchStep(self.network, self.method, _BATCH_SIZE, _NUM_CONTEXT)
        if self.method == FORWARD or self.method in PREDICTIONS:
            make = plain_forward if self.method == FORWARD else PREDICTIONS[self.method].make
            return make(replace(step, num_context=0).make_work(self.num_inputs, self.num_samples))
        method, x = step.make_method(), step.inputs(_BATCH_SIZE)
        training_action(method, x)()
        end_training(method, x)
        inputs = step.inputs(self.num_inputs)
        return lambda: method.predict(inputs, num_samples=self.num_samples).mean


@dataclass(frozen=True)
class PredictionCost:
    """The cost of a prediction.

    Attributes:
        prediction: What was measured.
        ms: Milliseconds.
        ratio: The ratio to one forward pass of the network.
    """

    prediction: BenchPrediction
    ms: Spread
    ratio: Spread

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        costs = asdict(self)
        return {**costs.pop("prediction"), **costs}


def measure_predictions(predictions: Iterable[BenchPrediction], rounds: int) -> list[PredictionCost]:
    """The costs of predictions and of their forward passes, timed in turn.

    Args:
        predictions: The predictions.
        rounds: The number of measurements of each.
    """
    everything = dict.fromkeys(each for prediction in predictions for each in (prediction.forward, prediction))
    seconds = interleave({each: each.make_action() for each in everything}, rounds)
    return [
        PredictionCost(each, Spread.of_milliseconds(values), Spread.of_ratio(values, seconds[each.forward]))
        for each, values in seconds.items()
    ]


def end_training(method: Method, x: Inputs) -> None:
    """Do what `fit` does after the last epoch, so that the method predicts like a trained one.

    Args:
        method: The method.
        x: Inputs of a minibatch.
    """
    batch = method.check_batch(x, torch.zeros(len(x), dtype=torch.int64))
    method.progress = 1.0
    method.after_epoch(lambda: [batch])
    method.finish(lambda: [batch])
    method.eval()
