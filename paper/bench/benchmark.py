"""`fsvi bench`: the cost of FSVI's training steps and predictions, compared with plain PyTorch."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from paper.bench.goals import Goal, prediction_goals, step_goals
from paper.bench.method_costs import parse_names, run_method_bench
from paper.bench.predictions import BenchPrediction, measure_predictions
from paper.bench.rendering import goal_table, prediction_table, step_table
from paper.bench.sections import Section, run_sections
from paper.bench.step_costs import measure_steps
from paper.bench.steps import FSVI_METHODS, BenchStep

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
        both_layouts: Whether images are also measured in channels-first order.
    """

    network: str
    batch_size: int
    num_context: int
    rounds: int
    both_layouts: bool = False

    def steps(self) -> list[BenchStep]:
        """MAP's step and FSVI's, one for each way of linearizing and one for last-layer mode."""
        layouts = (True, False) if self.both_layouts else (True,)
        ours = [BenchStep(self.network, name, self.batch_size, self.num_context) for name in FSVI_METHODS]
        steps = [BenchStep(self.network, "map", self.batch_size, 0), *ours]
        return [replace(step, channels_last=layout) for layout in layouts for step in steps]


@dataclass(frozen=True)
class Plan:
    """What to measure, and how often."""

    cases: tuple[Case, ...]
    """with memory, a section each"""
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


_DRAWS = (("conditional", 10), ("last_layer", 100))

FULL = Plan(
    cases=(
        Case("cnn", 128, 32, rounds=100, both_layouts=True),
        Case("resnet18", 32, 8, rounds=100),
        Case("transformer", 32, 8, rounds=100),
        Case("mlp 100", 128, 32, rounds=100),
    ),
    jacobian=Case("cnn", 128, 32, rounds=3),
    memory_repeats=3,
    networks=(
        *(Case(name, 128, 32, rounds=20) for name in ("mlp 100", "mlp 400-400", "cnn", "mlp 2000-2000")),
        *(Case(name, 32, 8, rounds=10) for name in ("resnet18", "resnet18 (1000 classes)")),
    ),
    context=Case("cnn", 128, 8, rounds=8),
    context_sizes=(8, 16, 32, 64, 128, 256, 512),
    draws=_DRAWS,
    num_images=1000,
    prediction_rounds=100,
)
QUICK = Plan(
    cases=(
        Case("cnn", 128, 32, rounds=8, both_layouts=True),
        Case("resnet18", 8, 2, rounds=2),
        Case("transformer", 32, 8, rounds=4),
        Case("mlp 100", 128, 32, rounds=20),
    ),
    jacobian=Case("cnn", 128, 4, rounds=2),
    memory_repeats=1,
    networks=tuple(Case(name, 128, 32, rounds=5) for name in ("mlp 100", "mlp 400-400", "mlp 2000-2000")),
    context=Case("cnn", 128, 8, rounds=2),
    context_sizes=(8, 64, 512),
    draws=_DRAWS,
    num_images=128,
    prediction_rounds=2,
)


def run_bench(out: Path, quick: bool, methods: str | None = None, only: str | None = None) -> None:
    """Measure, print tables, and write a JSON file.

    Args:
        out: The folder to write `bench.json` to, or `methods.json`.
        quick: Whether to make fewer repetitions with smaller sizes.
        methods: Compare these methods instead: "all", or names separated by commas.
        only: The sections to measure, separated by commas; None measures all. Others stay in the file as they are.
    """
    console = make_console()
    if methods is not None:
        run_method_bench(out, parse_names(methods), quick, console)
        return
    path = out / "bench.json"
    console.print("Medians of interleaved rounds, ± half the distance between the quartiles.")
    run_sections(path, _sections(QUICK if quick else FULL, console), only, quick)
    console.print(f"Written to {path}.")


def make_console() -> Console:
    """Where tables are printed; wide enough for them if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def _sections(plan: Plan, console: Console) -> dict[str, Section]:
    """All sections, each printed as soon as it is measured."""

    def steps(title: str, steps: list[BenchStep], rounds: int, memory_repeats: int = 0) -> dict[str, Any]:
        costs = measure_steps(steps, rounds, memory_repeats)
        console.print(step_table(title, costs))
        return {"rows": [cost.as_dict() for cost in costs], "goals": goals(step_goals(costs))}

    def networks() -> dict[str, Any]:
        costs = [cost for case in plan.networks for cost in measure_steps(case.steps(), case.rounds)]
        console.print(step_table("As the network grows", costs))
        return {"rows": [cost.as_dict() for cost in costs]}

    def predictions() -> dict[str, Any]:
        costs = measure_predictions(
            [BenchPrediction("cnn", name, num, plan.num_images) for name, num in plan.draws], plan.prediction_rounds
        )
        console.print(prediction_table("Predictions", costs))
        return {"rows": [cost.as_dict() for cost in costs], "goals": goals(prediction_goals(costs))}

    def goals(found: list[Goal]) -> list[dict[str, Any]]:
        if found:
            console.print(goal_table("Goals", found))
        return [{**asdict(goal), "met": goal.met} for goal in found]

    jacobian, context = plan.jacobian, plan.context
    jacobian_step = BenchStep(jacobian.network, "jacobian", jacobian.batch_size, jacobian.num_context)
    context_steps = [
        BenchStep(context.network, name, context.batch_size, size)
        for name in FSVI_METHODS
        for size in plan.context_sizes
    ]
    return {
        **{
            case.network: partial(steps, f"Steps on {case.network}", case.steps(), case.rounds, plan.memory_repeats)
            for case in plan.cases
        },
        "jacobian": partial(
            steps, "A step that materializes the Jacobian", [jacobian_step], jacobian.rounds, plan.memory_repeats
        ),
        "networks": networks,
        "context": partial(steps, "As K grows", context_steps, context.rounds),
        "predictions": predictions,
    }
