"""`fsvi bench --methods`: the cost of every method compared with MAP, on the paper's CNN."""

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
from fsvi.experiments.bench.rendering import empty_table, show
from fsvi.experiments.bench.steps import NETWORKS, BenchStep, training_action
from fsvi.experiments.bench.timing import Spread, interleave
from fsvi.functions.contexts import Dataset
from fsvi.likelihoods import Categorical
from fsvi.methods import Method
from fsvi.methods.registry import METHODS, make_method
from fsvi.serialization import check_writable, write_bytes

ALL = (*METHODS, "ensemble:map")
_SIZES = BenchStep("cnn", "map", batch_size=128, num_context=0)
_CONTEXT_IMAGES = 512
_SETTINGS: dict[str, dict[str, Any]] = {"spg": {"num_prior_steps": 1}, "ensemble:map": {"size": 5}}
"""Settings other than the defaults: SPG fits its prior before training, which is not part of a step."""


@dataclass(frozen=True)
class MethodCost:
    """The cost of a method on the CNN.

    Attributes:
        name: The method's name.
        step_ms: Milliseconds per training step.
        step_ratio: The ratio to a step of MAP.
        predict_ms: Milliseconds per prediction.
        predict_ratio: The ratio to a prediction of MAP.
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
    rounds, num_images, num_samples = (2, 64, 4) if quick else (15, 500, 10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        costs = measure_methods(names, rounds, num_images, num_samples)
    console.print(
        _method_table(f"Methods: B = 128, predictions of {num_images} images with {num_samples} draws", costs)
    )
    path = out / "methods.json"
    write_bytes(path, json.dumps([asdict(cost) for cost in costs], indent=1).encode())
    console.print(f"Written to {path}.")
    return costs


def measure_methods(names: Sequence[str], rounds: int, num_images: int, num_samples: int) -> list[MethodCost]:
    """The costs of methods, including MAP, timed in turn.

    Args:
        names: The methods.
        rounds: The number of measurements of each.
        num_images: The number of images per prediction.
        num_samples: Draws per prediction.
    """
    methods = {name: _make(name) for name in dict.fromkeys(["map", *names])}
    x = _SIZES.inputs(_SIZES.batch_size)
    steps = interleave({name: training_action(method, x) for name, method in methods.items()}, rounds)
    for method in methods.values():
        _end_training(method, x)
    images = _SIZES.inputs(num_images)
    predict: dict[str, Callable[[], Any]] = {
        name: partial(method.predict, images, num_samples=num_samples) for name, method in methods.items()
    }
    predictions = interleave(predict, rounds)
    return [_cost(name, steps, predictions) for name in methods]


def parse_names(text: str) -> list[str]:
    """The methods of a command-line option: "all", or names separated by commas."""
    names = list(ALL) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidInputError(f"--methods {text!r} names no method: use all, or names such as map,swag.")
    return names


def _make(name: str) -> Method:
    context = Dataset(_SIZES.inputs(_CONTEXT_IMAGES))
    return make_method(name, NETWORKS["cnn"].make, Categorical(), context=context, **_SETTINGS.get(name, {}))


def _end_training(method: Method, x: torch.Tensor) -> None:
    """Do what `fit` does after the last epoch, so that the method predicts like a trained one."""
    batch = method.check_batch(x, torch.zeros(len(x), dtype=torch.int64))
    method.progress = 1.0
    method.after_epoch(lambda: [batch])
    method.finish(lambda: [batch])
    method.eval()


def _cost(name: str, steps: dict[str, list[float]], predictions: dict[str, list[float]]) -> MethodCost:
    parts = [_milliseconds(steps[name]), Spread.of_ratio(steps[name], steps["map"])]
    parts += [_milliseconds(predictions[name]), Spread.of_ratio(predictions[name], predictions["map"])]
    return MethodCost(name, *parts)


def _milliseconds(seconds: Sequence[float]) -> Spread:
    return Spread.of([1e3 * value for value in seconds])


def _method_table(title: str, costs: Sequence[MethodCost]) -> Table:
    table = empty_table(title, ("method", "step ms", "÷ MAP", "predict ms", "÷ MAP"), left=(0,))
    for cost in costs:
        shown = (
            show(cost.step_ms, ".1f"),
            show(cost.step_ratio),
            show(cost.predict_ms, ".1f"),
            show(cost.predict_ratio),
        )
        table.add_row(cost.name, *shown)
    return table
