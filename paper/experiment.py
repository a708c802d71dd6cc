"""An experiment: a method on a task, complete, from the data to the metrics.

A recipe is a function from an `Order` to an `Experiment`. Only `Experiment.evaluate` loads test data. Code that does
not call it, such as tuning and early stopping, cannot see any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fsvi.methods import Method
from fsvi.training import History, fit
from paper.data import DataSplit

Profile = Literal["paper", "desk", "quick", "smoke"]
"""The paper's protocol; all data on a desktop in about an hour, for the tasks that have such a recipe; a few minutes on
a laptop; a few seconds, to check that everything works."""

PROFILES: tuple[str, ...] = get_args(Profile)
DESK = "desk"
"""The profile that only some tasks have."""


@dataclass(frozen=True)
class Order:
    """A run to make; the seed is that of the data split if the task has one, and of training.

    `context` None is the task's default. `settings` of the method and of `fit` override the recipe's, for tuning. A run
    is the same run on any device and in any precision.
    """

    task: str
    method: str
    profile: Profile = "paper"
    seed: int = 0
    context: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fit_settings: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    precision: str | None = None

    @property
    def member(self) -> str:
        """The method, or the members' method for an ensemble."""
        return self.method.removeprefix("ensemble:")

    def __str__(self) -> str:
        context = f" ({self.context})" if self.context else ""
        return f"{self.task} {self.method}{context}, {self.profile}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """The evaluation of a trained method: numbers by name, curves by figure, and the test data."""

    metrics: dict[str, float]
    curves: dict[str, Any]
    sources: Sequence[DataSplit] = ()


@dataclass(frozen=True)
class Experiment:
    """A method on a task.

    Attributes:
        make: Makes the method, untrained, from the trained models of `starts`, or without any from a new network.
        data: Training inputs and targets as the network sees them; `dataset` turns them into what `fit` receives.
        sources: The training data and the context's data.
        notes: Differences from the paper that a reader of the results must know.
        validation: Loads inputs and targets for tuning, if a random part of `data` would not do.
        tests: Datasets whose test split `evaluate` loads. A run checks that they are available before it trains.
        starts: Runs with the same data, which a run makes first.
        trains: Whether the method is trained; what `make` makes of trained models may be ready.
        is_diagnosed: Whether `data` are all training data, so that a diagnosis on them means something.
    """

    make: Callable[..., Method]
    data: tuple[Any, Tensor]
    fit_settings: Mapping[str, Any]
    evaluate: Callable[[Method], Outcome]
    sources: Sequence[DataSplit] = ()
    notes: Sequence[str] = ()
    dataset: Callable[[Tensor, Tensor], Any] | None = None
    validation: Callable[[], tuple[Any, Tensor]] | None = None
    tests: Sequence[str] = ()
    starts: Sequence[Order] = ()
    trains: bool = True
    is_diagnosed: bool = True

    def build(self, seed: int, started: Sequence[Method] = ()) -> Method:
        """The untrained method."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make(*started)

    def train(self, method: Method, seed: int, **settings: Any) -> History:
        """Train the method that `build` made."""
        if not self.trains:
            return History()
        data: Any = self.data if self.dataset is None else self.dataset(*self.data)
        return fit(method, data, seed=seed, **{**self.fit_settings, **settings})


Recipe: TypeAlias = Callable[[Order], Experiment]


def thin(values: Any, num: int = 100) -> list[float]:
    """At most `num` evenly spaced values of a curve, including the first and the last, rounded to five decimals."""
    values = torch.as_tensor(values, dtype=torch.float64)
    index = torch.linspace(0, len(values) - 1, min(num, len(values))).round().long()
    return [round(float(value), 5) for value in values[index]]
