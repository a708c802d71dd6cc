"""The benchmark's results as tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from paper.bench.goals import Goal
from paper.bench.predictions import PredictionCost
from paper.bench.step_costs import StepCost
from paper.bench.timing import Spread


def step_table(title: str, costs: Iterable[StepCost]) -> Table:
    """A row per step: milliseconds, the ratio to plain PyTorch, its limit, the gain of channels-last order, and memory.

    Args:
        title: The title.
        costs: One cost per row.
    """
    columns = (
        "network",
        "parameters",
        "B",
        "K",
        "step",
        "layout",
        "ms",
        "÷ plain",
        "limit",
        "× layout",
        "peak MB",
        "÷ plain",
    )
    table = empty_table(title, columns, left=(0, 4, 5))
    for cost in costs:
        step = cost.step
        table.add_row(
            step.network,
            f"{step.num_parameters:,}",
            str(step.batch_size),
            str(step.num_context) if step.num_context else "",
            step.method,
            "last" if step.channels_last else "first",
            show(cost.ms, ".1f"),
            show(cost.ratio),
            "" if step.limit is None else f"{step.limit:.2f}",
            "" if cost.layout_gain is None else show(cost.layout_gain),
            "" if cost.memory is None else f"{cost.memory.added:.0f}",
            "" if cost.memory_ratio is None else f"{cost.memory_ratio:.2f}",
        )
    return table


def prediction_table(title: str, costs: Iterable[PredictionCost]) -> Table:
    """One row per prediction: milliseconds, and the ratio to one forward pass.

    Args:
        title: The title.
        costs: One cost per row.
    """
    table = empty_table(title, ("network", "method", "draws", "inputs", "ms", "÷ forward"), left=(0, 1))
    for cost in costs:
        what = cost.prediction
        sizes = (str(what.num_samples), str(what.num_inputs))
        table.add_row(what.network, what.method, *sizes, show(cost.ms, ".1f"), show(cost.ratio))
    return table


def goal_table(title: str, goals: Iterable[Goal]) -> Table:
    """One row per goal: the measured value, its bound, and whether the goal is met.

    Args:
        title: The title.
        goals: One goal per row.
    """
    table = empty_table(title, ("", "measured", "goal", "met"), left=(0, 3))
    for goal in goals:
        bound = f"{'≥' if goal.at_least else '≤'} {goal.bound}"
        table.add_row(goal.what, f"{goal.value:.2f}", bound, "yes" if goal.met else "no")
    return table


def empty_table(title: str, columns: Iterable[str], left: tuple[int, ...]) -> Table:
    """A table with columns and no rows.

    Args:
        title: The title.
        columns: The headings.
        left: The positions of columns that have text; the others have numbers.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=True)
    return table


def show(spread: Spread, form: str = ".2f") -> str:
    """The median, and half the distance between the quartiles.

    Args:
        spread: The measurements.
        form: The format of a number.
    """
    return f"{spread.median:{form}} ±{(spread.high - spread.low) / 2:{form}}"
