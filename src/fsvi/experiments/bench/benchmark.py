"""`fsvi bench`: the cost of FSVI's training steps and predictions, compared with plain training."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import fsvi
from fsvi.experiments.bench.goals import find_goals
from fsvi.experiments.bench.method_costs import parse_names, run_method_bench
from fsvi.experiments.bench.rendering import goal_table, prediction_table, step_table
from fsvi.experiments.bench.step_costs import PredictionCost, StepCost, measure_predictions, measure_steps
from fsvi.experiments.bench.steps import FSVI_METHODS, BenchStep
from fsvi.serialization import check_writable, write_bytes

_WIDTH = 130
"""Width of the tables if the output is not a terminal."""


@dataclass(frozen=True)
class Case:
    """The steps of every method on one network.

    Attributes:
        network: The network's name.
        batch_size: The number of examples per step, B.
        num_context: The number of context points, K.
        rounds: The number of measurements.
    """

    network: str
    batch_size: int
    num_context: int
    rounds: int

    def steps(self, channels_last: bool = True) -> list[BenchStep]:
        """FSVI's steps, one for each way of linearizing and one for last-layer mode."""
        return [
            BenchStep(self.network, name, self.batch_size, self.num_context, channels_last) for name in FSVI_METHODS
        ]


@dataclass(frozen=True)
class Plan:
    """What to measure, and how often."""

    cases: tuple[Case, ...]
    """in both memory layouts, with memory"""
    jacobian: Case
    """a size at which the Jacobian fits into memory"""
    memory_repeats: int
    networks: tuple[Case, ...]
    """networks from small to large"""
    context: Case
    context_sizes: tuple[int, ...]
    draws: tuple[tuple[str, int], ...]
    num_images: int
    prediction_rounds: int


_DRAWS = (("all", 10), ("last_layer", 100))

FULL = Plan(
    cases=(Case("cnn", 128, 32, rounds=100), Case("resnet18", 32, 8, rounds=5)),
    jacobian=Case("cnn", 128, 32, rounds=3),
    memory_repeats=3,
    networks=(
        *(Case(name, 128, 32, rounds=20) for name in ("mlp 100", "mlp 400-400", "cnn", "mlp 2000-2000")),
        Case("resnet18", 32, 8, rounds=3),
    ),
    context=Case("cnn", 128, 8, rounds=8),
    context_sizes=(8, 16, 32, 64, 128, 256, 512),
    draws=_DRAWS,
    num_images=1000,
    prediction_rounds=15,
)
QUICK = Plan(
    cases=(Case("cnn", 128, 32, rounds=8), Case("resnet18", 8, 2, rounds=2)),
    jacobian=Case("cnn", 128, 4, rounds=2),
    memory_repeats=1,
    networks=tuple(Case(name, 128, 32, rounds=5) for name in ("mlp 100", "mlp 400-400", "mlp 2000-2000")),
    context=Case("cnn", 128, 8, rounds=2),
    context_sizes=(8, 64, 512),
    draws=_DRAWS,
    num_images=128,
    prediction_rounds=2,
)


def run_bench(out: Path, quick: bool, methods: str | None = None) -> None:
    """Measure, print tables, and write a JSON file.

    Args:
        out: The folder to write `bench.json` to, or `methods.json`.
        quick: Whether to make fewer repetitions with smaller sizes.
        methods: Compare these methods instead: "all", or names separated by commas.
    """
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    if methods is not None:
        run_method_bench(out, parse_names(methods), quick, console)
        return
    check_writable(out)
    started = time.perf_counter()
    console.print("Medians of interleaved rounds, ± half the distance between the quartiles.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = _measure(QUICK if quick else FULL, console)
    document = {"machine": _machine(), "quick": quick, "seconds": time.perf_counter() - started, **results}
    path = out / "bench.json"
    write_bytes(path, json.dumps(document, indent=1).encode())
    console.print(f"Written to {path}.")


def _measure(plan: Plan, console: Console) -> dict[str, list[dict[str, Any]]]:
    """All sections, each printed as soon as it is measured."""

    def shown(title: str, costs: list[StepCost]) -> list[StepCost]:
        console.print(step_table(title, costs))
        return costs

    steps = [
        cost
        for case in plan.cases
        for cost in shown(f"Steps on {case.network}", _measure_case(case, plan.memory_repeats))
    ]
    jacobian = shown("A step that materializes the Jacobian", _measure_jacobian(plan.jacobian, plan.memory_repeats))
    networks = shown("As the network grows", _measure_networks(plan.networks))
    context = shown("As K grows", _measure_context(plan.context, plan.context_sizes))
    predictions = _measure_predictions(plan)
    console.print(prediction_table("Predictions", predictions))
    goals = find_goals(steps, predictions)
    console.print(goal_table("Goals", goals))
    sections = {"steps": steps, "jacobian": jacobian, "networks": networks, "context": context}
    return {
        **{name: [cost.as_dict() for cost in costs] for name, costs in sections.items()},
        "predictions": [asdict(cost) for cost in predictions],
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
    }


def _measure_case(case: Case, memory_repeats: int) -> list[StepCost]:
    return measure_steps(case.steps(channels_last=True) + case.steps(channels_last=False), case.rounds, memory_repeats)


def _measure_jacobian(case: Case, memory_repeats: int) -> list[StepCost]:
    step = BenchStep(case.network, "jacobian", case.batch_size, case.num_context)
    return measure_steps([step], case.rounds, memory_repeats)


def _measure_networks(cases: tuple[Case, ...]) -> list[StepCost]:
    return [cost for case in cases for cost in measure_steps(case.steps(), case.rounds)]


def _measure_context(case: Case, sizes: tuple[int, ...]) -> list[StepCost]:
    steps = [replace(step, num_context=size) for step in case.steps() for size in sizes]
    return measure_steps(steps, case.rounds)


def _measure_predictions(plan: Plan) -> list[PredictionCost]:
    plain, conditional, last_layer = (BenchStep("cnn", name, 128, 32) for name in ("map", "conditional", "last_layer"))
    methods = {"all": conditional.make_method(), "last_layer": last_layer.make_method()}
    x = plain.inputs(plan.num_images)
    return measure_predictions(methods, plain.make_method(), plan.draws, x, plan.prediction_rounds)


def _machine() -> dict[str, Any]:
    return {
        "fsvi": fsvi.__version__,
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
