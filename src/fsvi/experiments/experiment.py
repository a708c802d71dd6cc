"""What an experiment is: a method on a task, complete, from the data to the measures.

A recipe is a function from an `Order` to an `Experiment`. Only `Experiment.evaluate` ever loads test data, so whatever
does not call it, tuning and early stopping among them, cannot have seen any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fsvi.data import DataSplit
from fsvi.methods import Method
from fsvi.training import History, fit

Profile = Literal["paper", "quick", "smoke"]
"""The paper's protocol; a few minutes on a laptop; seconds, to see that everything works."""

PROFILES: tuple[str, ...] = get_args(Profile)


@dataclass(frozen=True)
class Order:
    """What to run.

    Attributes:
        task: A task's name.
        method: A method's name, as `fsvi.make_method` knows it.
        profile: How much effort it may take.
        seed: Of the split where the task has one, the initial parameters, and training.
        context: Where a method that looks beyond the data does so; None for the task's own choice.
        settings: Arguments of the method that differ from the recipe's.
        fit_settings: Arguments of `fit` that differ from the recipe's.
    """

    task: str
    method: str
    profile: Profile = "paper"
    seed: int = 0
    context: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fit_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def member(self) -> str:
        """The method, or what an ensemble is made of."""
        return self.method.removeprefix("ensemble:")


@dataclass(frozen=True)
class Outcome:
    """What a trained method is worth.

    Attributes:
        metrics: Numbers by name; shares are fractions of 1.
        curves: What figures are drawn from: lists of numbers, by figure.
        sources: The test data.
    """

    metrics: dict[str, float]
    curves: dict[str, Any]
    sources: Sequence[DataSplit] = ()


@dataclass(frozen=True)
class Experiment:
    """A method on a task.

    Attributes:
        make: Makes the method, untrained.
        data: Training inputs and targets as the network sees them.
        fit_settings: Arguments of `fit`.
        evaluate: Loads the test data and measures a trained method.
        sources: The training data, and the context's.
        notes: What a reader of the figures must know.
        dataset: Makes of `data` what `fit` is given in its place, such as a dataset that augments its batches.
        validation: Loads inputs and targets to tune by, where a part of `data` drawn at random would not do.
        tests: Datasets whose test split `evaluate` loads: a run sees to it that they are here before it trains.
    """

    make: Callable[[], Method]
    data: tuple[Tensor, Tensor]
    fit_settings: Mapping[str, Any]
    evaluate: Callable[[Method], Outcome]
    sources: Sequence[DataSplit] = ()
    notes: Sequence[str] = ()
    dataset: Callable[[Tensor, Tensor], Any] | None = None
    validation: Callable[[], tuple[Tensor, Tensor]] | None = None
    tests: Sequence[str] = ()

    def build(self, seed: int) -> Method:
        """The method, untrained; the seed decides the network's initial parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def train(self, method: Method, seed: int, **settings: Any) -> History:
        """Train what `build` made."""
        data: Any = self.data if self.dataset is None else self.dataset(*self.data)
        return fit(method, data, seed=seed, **{**self.fit_settings, **settings})


Recipe: TypeAlias = Callable[[Order], Experiment]
