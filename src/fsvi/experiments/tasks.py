"""Every task of the paper by its name."""

from __future__ import annotations

from dataclasses import dataclass

from fsvi.experiments.experiment import Recipe
from fsvi.experiments.fashion_mnist import fashion_mnist
from fsvi.experiments.toy_runs import toy
from fsvi.experiments.uci import PREFIX, TABLES, uci


@dataclass(frozen=True)
class Task:
    """A task of the paper.

    Attributes:
        title: Its name for people.
        recipe: What is run.
        context: The context that methods use where none is asked for; None where the task has only one.
    """

    title: str
    recipe: Recipe
    context: str | None = None


TASKS: dict[str, Task] = {
    "fashion-mnist": Task("FashionMNIST", fashion_mnist, "kmnist"),
    **{PREFIX + name: Task(f"UCI {name}", uci) for name in TABLES},
    "two-moons": Task("Two moons", toy),
    "snelson": Task("Snelson", toy),
    "oat1d": Task("OAT-1D", toy),
    "subspace": Task("Subspace", toy),
}
