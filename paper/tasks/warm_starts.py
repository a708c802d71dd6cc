"""Recipes that start from another run's trained network, which takes a fraction of the time of a new training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fsvi.methods import MAP, Ensemble, Laplace, Method
from paper.experiment import Experiment, Order

FIRST = "map"
"""The method whose trained network the others start from."""

MEMBERS = 3
"""The number of runs that an ensemble joins."""


def warm_started(experiment: Experiment, order: Order) -> Experiment:
    """The experiment with a warm start, as far as its method can have one.

    MAP is trained from a new network. An ensemble joins three runs of its members' method, with seeds of their own.
    Laplace approximates the posterior around the MAP of the same seed. Every other method starts from the network of
    that MAP, and is trained with the experiment's settings of `fit`.
    """
    if order.method == FIRST:
        return experiment
    if order.member != order.method:
        return joined(experiment, order)
    start = [Order(order.task, FIRST, order.profile, order.seed)]
    if order.method == "laplace":
        data = experiment.data
        structure: dict[str, Any] = dict(order.settings)
        return _ready(experiment, start, lambda mode: _approximated(mode, data, structure), "around the trained MAP")
    notes = [*experiment.notes, "starts from the trained network of MAP, whose time is not part of the training time"]
    return replace(experiment, starts=start, notes=notes)


def joined(experiment: Experiment, order: Order) -> Experiment:
    """An ensemble of three runs of its members' method, with seeds of their own; nothing else is trained."""
    if order.member == order.method:
        return experiment
    seeds = range(MEMBERS * order.seed, MEMBERS * (order.seed + 1))
    starts = [replace(order, method=order.member, seed=seed) for seed in seeds]
    return _ready(experiment, starts, lambda *members: Ensemble.of(members), "an ensemble of runs of its own seeds")


def _ready(experiment: Experiment, starts: list[Order], make: Any, note: str) -> Experiment:
    """An experiment whose method is ready once it is made of trained models."""

    def made(*trained: Method) -> Method:
        return make(*trained) if trained else experiment.make()

    return replace(experiment, make=made, starts=starts, trains=False, notes=[*experiment.notes, note])


def _approximated(mode: Method, data: Any, settings: dict[str, Any]) -> Laplace:
    assert isinstance(mode, MAP)
    return Laplace.from_trained(mode, data, **settings)
