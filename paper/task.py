"""The description of a task: everything that commands, sweeps and reports know about it.

A new task is one file in `paper.tasks` that holds a `Task`, and one line in its registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paper.columns import TableLayout
from paper.experiment import DESK, PROFILES, Experiment, Order, Recipe

MethodAndContext = tuple[str, str | None]
"""A method's name, and its context if the sweep names one."""


@dataclass(frozen=True)
class Sweep:
    """The runs behind a table or figure of the paper; tasks with the same sweep are run together.

    Attributes:
        name: What `python -m paper reproduce` calls it.
        rows: The methods with their contexts.
        seeds: How many seeds a row has if the command names no number.
        more_seeds: Rows with another number of seeds.
        desk: The methods with their contexts at the profile `desk`, if the tasks have it.
        desk_seeds: How many seeds a row of that profile has.
    """

    name: str
    rows: tuple[MethodAndContext, ...]
    seeds: int = 1
    more_seeds: Mapping[MethodAndContext, int] = field(default_factory=dict)
    desk: tuple[MethodAndContext, ...] = ()
    desk_seeds: int = 1

    def rows_at(self, profile: str) -> tuple[MethodAndContext, ...]:
        """The methods with their contexts at a profile; none if the tasks do not have it."""
        return self.desk if profile == DESK else self.rows

    def seeds_of(self, row: MethodAndContext, profile: str) -> int:
        """How many seeds a row has if the command names no number."""
        return self.desk_seeds if profile == DESK else self.more_seeds.get(row, self.seeds)


@dataclass(frozen=True)
class Section:
    """A section of the report; tasks that share a table share a section.

    Attributes:
        title: Its heading.
        about: One or two sentences about the task.
        tables: The tables, filled from results.
    """

    title: str
    about: str
    tables: tuple[TableLayout, ...]


@dataclass(frozen=True)
class Task:
    """A task of the paper.

    Attributes:
        name: Its name on the command line and in files.
        recipe: Makes an experiment from an order.
        section: Where the report shows it.
        sweep: The runs that reproduce the paper's table or figure.
        context: The default context of methods that take one; None if the task has a fixed context.
        contexts: The contexts to choose from; empty for those of images and all datasets.
        profiles: The profiles that its recipe knows.
        threads: The number of threads to train with; None for PyTorch's choice. Small networks are fastest with one,
            and then their results do not depend on the number of cores.
    """

    name: str
    recipe: Recipe
    section: Section
    sweep: Sweep
    context: str | None = None
    contexts: tuple[str, ...] = ()
    profiles: tuple[str, ...] = tuple(name for name in PROFILES if name != DESK)
    threads: int | None = None

    def experiment(self, order: Order) -> Experiment:
        """The experiment of an order, with the learning-rate schedule that its method needs."""
        experiment = self.recipe(order)
        return replace(experiment, fit_settings={**_method_schedule(order), **experiment.fit_settings})


def _method_schedule(order: Order) -> Mapping[str, Any]:
    """Methods that average parameters do so at a constant learning rate; all others use the default schedule."""
    if order.member != "swag":
        return {}
    start = order.settings.get("start")
    return {"schedule": AveragingSchedule() if start is None else AveragingSchedule(start)}


# Learning rates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AveragingSchedule:
    """SWAG's schedule: high at first, then a linear descent, then constant while parameters are collected.

    As in the code of SWAG's authors (Maddox et al., 2019), the descent lasts from 50% to 90% of the time before
    collection starts. A rate that kept falling would collect nearly the same network again and again.

    Args:
        start: The fraction of training after which SWAG collects parameters.
        final: The learning rate during collection, as a factor of the initial one.
    """

    start: float = 0.5
    final: float = 0.5

    def __call__(self, done: float) -> float:
        """The factor on the learning rate when the fraction `done` of training is done."""
        if self.start == 0.0:
            return self.final
        descended = (done / self.start - 0.5) / 0.4
        return 1.0 - (1.0 - self.final) * min(max(descended, 0.0), 1.0)


@dataclass(frozen=True)
class TriangularSchedule:
    """Rises linearly to the full learning rate, then falls linearly: a short training at a high rate.

    Args:
        first: The factor at the start.
        peak: The fraction of training after which the factor is 1.
        final: The factor at the end.
    """

    first: float = 0.2
    peak: float = 0.23
    final: float = 0.01

    def __call__(self, done: float) -> float:
        """The factor on the learning rate when the fraction `done` of training is done."""
        if done < self.peak:
            return self.first + (1.0 - self.first) * done / self.peak
        return 1.0 - (1.0 - self.final) * min(1.0, (done - self.peak) / (1.0 - self.peak))
