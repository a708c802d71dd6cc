"""Every task of the paper by its name."""

from __future__ import annotations

from dataclasses import dataclass

from fsvi.experiments.experiment import Recipe
from fsvi.experiments.tasks.cifar10 import cifar10
from fsvi.experiments.tasks.fashion_mnist import fashion_mnist
from fsvi.experiments.tasks.retina import retina
from fsvi.experiments.tasks.rotated_mnist import rotated_mnist
from fsvi.experiments.tasks.toy_runs import toy
from fsvi.experiments.tasks.uci import PREFIX, TABLES, uci


@dataclass(frozen=True)
class Task:
    """A task of the paper.

    Attributes:
        title: Its name for people.
        recipe: What is run.
        context: The context that methods use where none is asked for; None where the task has only one.
        together: Whether seeds can be trained side by side.
    """

    title: str
    recipe: Recipe
    context: str | None = None
    together: bool = False


TASKS: dict[str, Task] = {
    "fashion-mnist": Task("FashionMNIST", fashion_mnist, "kmnist"),
    "cifar10": Task("CIFAR-10", cifar10, "monochrome"),
    "rotated-mnist": Task("Rotated MNIST", rotated_mnist, "kmnist"),
    "retina": Task("Retina", retina, "monochrome"),
    **{PREFIX + name: Task(f"UCI {name}", uci, together=True) for name in TABLES},
    "two-moons": Task("Two moons", toy),
    "snelson": Task("Snelson", toy),
    "oat1d": Task("OAT-1D", toy),
    "subspace": Task("Subspace", toy),
}
