"""Two moons: two classes in the plane, and predictions far beyond the data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.data.toy import two_moons
from fsvi.functions.contexts import Uniform
from fsvi.likelihoods import Categorical, Predictive
from fsvi.methods import Method, make_method
from fsvi.networks import mlp
from paper.columns import Column, TableLayout
from paper.experiment import Experiment, Order, Outcome
from paper.task import Section, Task
from paper.tasks.toys import TOY_SWEEP, as_lists, mean, predict, toy_fit_settings

NAME = "two-moons"

_REACH = 6.0
"""Predictions are measured on the square [−6, 6]²."""
_MEASURED, _DRAWN = 121, 61
"""Grid points along each side: for metrics, and for the picture in a result file."""
_FAR, _NEAR = 3.0, 0.3
"""Distances to the nearest training point."""


def two_moons_recipe(order: Order) -> Experiment:
    """200 points with noise 0.2, a 30-30 tanh network, context U[−10, 10]²; all other settings are the defaults.

    `fsvi run two-moons fsvi` takes about 20 seconds. Expected: accuracy at least 0.93, NLL at most 0.20; entropy in
    units of ln 2 at least 0.97 on average far from the data, and at most 0.35 near them.
    """
    train, test = two_moons(200, noise=0.2, seed=0), two_moons(1000, noise=0.2, seed=1)

    def make() -> Method:
        context = Uniform(low=[-10.0, -10.0], high=[10.0, 10.0])
        network = lambda: mlp(2, (30, 30), 2, nn.Tanh)  # noqa: E731
        return make_method(order.method, network, Categorical(), context=context, **order.settings)

    def evaluate(method: Method) -> Outcome:
        p = predict(method, test[0])
        held_out = {"accuracy": mean(p.mean.argmax(-1) == test[1]), "nll": -mean(p.log_prob(test[1]))}
        axis = torch.linspace(-_REACH, _REACH, _MEASURED)
        grid = torch.cartesian_prod(axis, axis).flip(1)
        p = predict(method, grid)
        return Outcome({**held_out, **_entropies(train[0], grid, p)}, {"picture": _surface(train, axis, p)})

    return Experiment(make, train, toy_fit_settings(order), evaluate)


def _surface(train: tuple[Tensor, Tensor], axis: Tensor, p: Predictive) -> dict[str, Any]:
    """The training points, and the mean and variance of class 1 on a grid whose rows are the second input."""
    step = (_MEASURED - 1) // (_DRAWN - 1)
    mean, variance = (each[:, 1].reshape(len(axis), len(axis))[::step, ::step] for each in (p.mean, p.variance))
    points = {"kind": "surface", "x": train[0], "y": train[1], "axis": axis[::step]}
    return as_lists({**points, "mean": mean, "variance": variance})


def _entropies(x: Tensor, grid: Tensor, p: Predictive) -> dict[str, float]:
    """The entropy in units of ln 2, near the training inputs `x` and far from them."""
    entropy = torch.special.entr(p.mean).sum(-1) / math.log(2)
    distance = torch.cdist(grid, x).amin(1)
    far, near = entropy[distance >= _FAR], entropy[distance <= _NEAR]
    return {"far_entropy": mean(far), "far_entropy_min": float(far.min()), "near_entropy": mean(near)}


_COLUMNS = (
    Column(NAME, "accuracy", "accuracy", "share of 1,000 held-out points with the right class", "higher"),
    Column(NAME, "nll", "NLL", "mean −log probability of the right class on held-out points", "lower"),
    Column(NAME, "far_entropy", "entropy far away", "mean at distance 3 or more from the data; 1 is a toss", "higher"),
    Column(NAME, "far_entropy_min", "lowest entropy far away", "at the most confident such place", "higher"),
    Column(NAME, "near_entropy", "entropy near the data", "mean within 0.3 of a training point; 0 is certainty"),
)

TASK = Task(
    NAME,
    two_moons_recipe,
    Section(
        "Two moons",
        "200 points of two classes form two interleaved half circles. The network predicts on a square far wider than "
        "the data. Entropy is in units of ln 2: 0 is certainty, 1 is a coin toss.",
        (TableLayout("Two moons", _COLUMNS),),
    ),
    TOY_SWEEP,
    threads=1,
)
