"""Every task of the paper by its name."""

from __future__ import annotations

from dataclasses import dataclass

from fsvi.experiments.experiment import Recipe
from fsvi.experiments.fashion_mnist import fashion_mnist


@dataclass(frozen=True)
class Task:
    """A task: its name for people, its recipe, and the context that methods use where none is asked for."""

    title: str
    recipe: Recipe
    context: str


TASKS: dict[str, Task] = {
    "fashion-mnist": Task("FashionMNIST", fashion_mnist, "kmnist"),
}
