"""The description of a task: everything that commands, sweeps and reports know about it.

A new task is one file in `paper.tasks` that holds a `Task`, and one line in its registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paper.columns import TableLayout
from paper.experiment import DESK, PROFILES, Experiment, Order, Recipe


@dataclass(frozen=True)
class Sweep:
    """The runs behind a table or figure of the paper, by the name that `python -m paper reproduce` knows.

    Tasks with the same sweep are run together. A row is a method, or with its context "fsvi (kmnist)", and has a number
    of seeds; at the profile `desk` there are other rows, for tasks that have it.
    """

    name: str
    rows: Mapping[str, int]
    desk: Mapping[str, int] = field(default_factory=dict)

    def rows_at(self, profile: str) -> Mapping[str, int]:
        """The rows at a profile, and how many seeds each has."""
        return self.desk if profile == DESK else self.rows


@dataclass(frozen=True)
class Section:
    """A section of the report; tasks that share a table share a section."""

    title: str
    about: str
    tables: tuple[TableLayout, ...]


@dataclass(frozen=True)
class Task:
    """A task of the paper.

    Attributes:
        context: The default context of methods that take one; None if the task has a fixed context.
        contexts: The contexts to choose from; empty for those of images and all datasets.
        methods: The task's own methods with their contexts; empty for all of `fsvi`.
        threads: None for PyTorch's choice. With one, results do not depend on the number of cores.
    """

    name: str
    recipe: Recipe
    section: Section
    sweep: Sweep
    context: str | None = None
    contexts: tuple[str, ...] = ()
    methods: Mapping[str, str | None] = field(default_factory=dict)
    profiles: tuple[str, ...] = tuple(name for name in PROFILES if name != DESK)
    threads: int | None = None

    def experiment(self, order: Order) -> Experiment:
        """The experiment of an order, in its precision and with the learning-rate schedule that its method needs."""
        made = self.recipe(order)
        settings, notes = {**_method_schedule(order), **made.fit_settings}, list(made.notes)
        if order.precision is not None and made.trains:
            settings["precision"] = order.precision
            notes.append(f"trained in {order.precision}")
        return replace(made, fit_settings=settings, notes=notes)


def _method_schedule(order: Order) -> Mapping[str, Any]:
    """Methods that average parameters do so at a constant learning rate; all others use the default schedule."""
    if order.member != "swag":
        return {}
    return {"schedule": AveragingSchedule(order.settings.get("start", 0.5))}


@dataclass(frozen=True)
class AveragingSchedule:
    """SWAG's schedule: high at first, then a linear descent, then constant while parameters are collected.

    As in the code of SWAG's authors (Maddox et al., 2019), the descent lasts from 50% to 90% of the time before
    `start`, the fraction of training after which parameters are collected. A rate that kept falling would collect
    nearly the same network again and again.
    """

    start: float = 0.5
    final: float = 0.5

    def __call__(self, done: float) -> float:
        """The factor on the learning rate when the fraction `done` of training is done."""
        if self.start == 0.0:
            return self.final
        return float(np.interp(done / self.start, (0.5, 0.9), (1.0, self.final)))


@dataclass(frozen=True)
class TriangularSchedule:
    """Rises linearly to the full rate until 23% of training, then falls: a short training at a high rate."""

    def __call__(self, done: float) -> float:
        """The factor on the learning rate when the fraction `done` of training is done."""
        return float(np.interp(done, (0.0, 0.23, 1.0), (0.2, 1.0, 0.01)))
