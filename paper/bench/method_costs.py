"""`fsvi bench --methods`: the cost of every method compared with plain PyTorch, on the paper's CNN."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Dataset
from fsvi.likelihoods import Categorical
from fsvi.methods import Method
from fsvi.methods.registry import METHODS, make_method
from fsvi.serialization import check_writable, write_bytes
from paper.bench.by_hand import plain_forward
from paper.bench.goals import method_goals
from paper.bench.predictions import end_training
from paper.bench.rendering import empty_table, goal_table, show
from paper.bench.steps import NETWORKS, PLAIN, BenchStep, training_action
from paper.bench.timing import Spread, interleave

ALL = (*METHODS, "ensemble:map")
_SIZES = BenchStep("cnn", "map", batch_size=128, num_context=0)
_CONTEXT_IMAGES = 512
_PREDICTION_ROUNDS = 15
"""The most rounds of predictions, which take longer than steps."""
_SETTINGS: dict[str, dict[str, Any]] = {
    "spg": {"num_prior_steps": 1},
    "fbnn": {"num_samples": 10},
    "ensemble:map": {"size": 5},
}
"""Settings other than the defaults: SPG fits its prior before training, which is not part of a step. FBNN has the ten
draws of the image tasks."""


@dataclass(frozen=True)
class MethodCost:
    """The cost of a method on the CNN.

    Attributes:
        name: The method's name.
        step_ms: Milliseconds per training step.
        step_ratio: The ratio to a step of plain PyTorch.
        predict_ms: Milliseconds per prediction.
        predict_ratio: The ratio to a forward pass of the network.
    """

    name: str
    step_ms: Spread
    step_ratio: Spread
    predict_ms: Spread
    predict_ratio: Spread


def run_method_bench(out: Path, names: Sequence[str], quick: bool, console: Console) -> list[MethodCost]:
    """Measure the methods in turn, print a table, and write `methods.json`.

    Args:
        out: The folder to write to.
        names: The methods.
        quick: Whether to make fewer repetitions with smaller sizes.
        console: Where to print.
    """
    check_writable(out)
    rounds, num_images, num_samples = (2, 64, 4) if quick else (100, 500, 10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        costs = measure_methods(names, rounds, num_images, num_samples)
    title = f"Methods: B = 128, predictions of {num_images} images with {num_samples} draws"
    console.print(_method_table(title, costs))
    console.print(goal_table("Goals", method_goals({cost.name: cost.step_ratio.median for cost in costs})))
    for name in (cost.name for cost in costs if cost.name in _SETTINGS):
        values = ", ".join(f"{setting}={value}" for setting, value in _SETTINGS[name].items())
        console.print(f"{name} has {values} instead of its default.")
    path = out / "methods.json"
    write_bytes(path, json.dumps([asdict(cost) for cost in costs], indent=1).encode())
    console.print(f"Written to {path}.")
    return costs


def measure_methods(names: Sequence[str], rounds: int, num_images: int, num_samples: int) -> list[MethodCost]:
    """The costs of plain PyTorch, of MAP and of methods, timed in turn.

    Args:
        names: The methods.
        rounds: The number of measurements of each; predictions are measured at most 15 times.
        num_images: The number of images per prediction.
        num_samples: Draws per prediction.
    """
    methods = {name: _make(name) for name in dict.fromkeys(["map", *names])}
    x = _SIZES.inputs(_SIZES.batch_size)
    training = {name: training_action(method, x) for name, method in methods.items()}
    steps = interleave({PLAIN: _SIZES.plain.make_action(), **training}, rounds)
    for method in methods.values():
        end_training(method, x)
    images = _SIZES.inputs(num_images)
    predict: dict[str, Callable[[], Any]] = {
        name: partial(method.predict, images, num_samples=num_samples) for name, method in methods.items()
    }
    forward = plain_forward(_SIZES.make_work(num_images))
    predictions = interleave({PLAIN: forward, **predict}, min(rounds, _PREDICTION_ROUNDS))
    return [_cost(name, steps, predictions) for name in steps]


def parse_names(text: str) -> list[str]:
    """The methods of a command-line option: "all", or names separated by commas."""
    names = list(ALL) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidInputError(f"--methods {text!r} names no method: use all, or names such as map,swag.")
    return names


def _make(name: str) -> Method:
    context = Dataset(_SIZES.inputs(_CONTEXT_IMAGES))
    return make_method(name, NETWORKS["cnn"].make, Categorical(), context=context, **_SETTINGS.get(name, {}))


def _cost(name: str, steps: dict[str, list[float]], predictions: dict[str, list[float]]) -> MethodCost:
    spreads = [
        spread
        for seconds in (steps, predictions)
        for spread in (Spread.of_milliseconds(seconds[name]), Spread.of_ratio(seconds[name], seconds[PLAIN]))
    ]
    return MethodCost(name, *spreads)


def _method_table(title: str, costs: Sequence[MethodCost]) -> Table:
    table = empty_table(title, ("method", "step ms", "÷ plain", "predict ms", "÷ forward"), left=(0,))
    for cost in costs:
        shown = (
            show(cost.step_ms, ".1f"),
            show(cost.step_ratio),
            show(cost.predict_ms, ".1f"),
            show(cost.predict_ratio),
        )
        table.add_row(cost.name, *shown)
    return table
