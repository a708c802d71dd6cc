"""Toy tasks: two moons in the plane, and regressions with one input and stretches without data."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fsvi.data import two_moons
from fsvi.functions.contexts import Context, Dataset, Mixture, Uniform
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Categorical, Gaussian, Predictive
from fsvi.methods import Method, Stds, make_method
from fsvi.networks import mlp
from paper.columns import Column, TableLayout
from paper.data.toys import Toy1D, oat1d, snelson, subspace
from paper.experiment import Experiment, Order, Outcome
from paper.task import Section, Sweep, Task

_SWEEP = Sweep("toy", dict.fromkeys(("fsvi", "mfvi", "ensemble:map"), 1))
_EPOCHS = {"quick": 500, "smoke": 5}


def _fit_settings(order: Order, **own: Any) -> dict[str, Any]:
    shortened = {"epochs": _EPOCHS[order.profile]} if order.profile in _EPOCHS else {}
    return {**own, **shortened, **order.fit_settings}


def _predict(method: Method, x: Tensor) -> Predictive:
    return method.predict(x, num_samples=100, batch_size=8192)


def _mean(values: Tensor) -> float:
    return float(values.float().mean())


def _lists(**values: Tensor) -> dict[str, list[Any]]:
    """Tensors as a result file keeps them, rounded."""
    return {name: np.asarray(value.float(), np.float64).round(4).tolist() for name, value in values.items()}


_MOONS = "two-moons"

_REACH = 6.0
"""Predictions are measured on the square [−6, 6]²."""
_MEASURED, _DRAWN = 121, 61
"""Grid points along each side: for metrics, and for the picture in a result file."""
_FAR, _NEAR = 3.0, 0.3
"""Distances to the nearest training point."""


def two_moons_recipe(order: Order) -> Experiment:
    """200 points with noise 0.2, a 30-30 tanh network, context U[−10, 10]²; all other settings are the defaults.

    `run two-moons fsvi` takes about 20 seconds. Expected: accuracy at least 0.93, NLL at most 0.20; entropy in
    units of ln 2 at least 0.97 on average far from the data, and at most 0.35 near them.
    """
    train, test = two_moons(200, noise=0.2, seed=0), two_moons(1000, noise=0.2, seed=1)

    def make() -> Method:
        context = Uniform(low=[-10.0, -10.0], high=[10.0, 10.0])
        network = lambda: mlp(2, (30, 30), 2, nn.Tanh)  # noqa: E731
        return make_method(order.method, network, Categorical(), context=context, **order.settings)

    def evaluate(method: Method) -> Outcome:
        p = _predict(method, test[0])
        held_out = {"accuracy": _mean(p.mean.argmax(-1) == test[1]), "nll": -_mean(p.log_prob(test[1]))}
        axis = torch.linspace(-_REACH, _REACH, _MEASURED)
        grid = torch.cartesian_prod(axis, axis).flip(1)
        p = _predict(method, grid)
        return Outcome({**held_out, **_entropies(train[0], grid, p)}, {"picture": _surface(train, axis, p)})

    return Experiment(make, train, _fit_settings(order), evaluate)


def _surface(train: tuple[Tensor, Tensor], axis: Tensor, p: Predictive) -> dict[str, Any]:
    """The training points, and the mean and variance of class 1 on a grid whose rows are the second input."""
    step = (_MEASURED - 1) // (_DRAWN - 1)
    mean, variance = (each[:, 1].reshape(len(axis), len(axis))[::step, ::step] for each in (p.mean, p.variance))
    return {"kind": "surface", **_lists(x=train[0], y=train[1], axis=axis[::step], mean=mean, variance=variance)}


def _entropies(x: Tensor, grid: Tensor, p: Predictive) -> dict[str, float]:
    """The entropy in units of ln 2, near the training inputs `x` and far from them."""
    entropy = torch.special.entr(p.mean).sum(-1) / math.log(2)
    distance = torch.cdist(grid, x).amin(1)
    far, near = entropy[distance >= _FAR], entropy[distance <= _NEAR]
    return {"far_entropy": _mean(far), "far_entropy_min": float(far.min()), "near_entropy": _mean(near)}


_MOON_COLUMNS = (
    Column(_MOONS, "accuracy", "accuracy", "higher"),
    Column(_MOONS, "nll", "NLL", "lower"),
    Column(_MOONS, "far_entropy", "entropy far away", "higher"),
    Column(_MOONS, "far_entropy_min", "lowest entropy far away", "higher"),
    Column(_MOONS, "near_entropy", "entropy near the data"),
)

TWO_MOONS = Task(
    _MOONS,
    two_moons_recipe,
    Section(
        "Two moons",
        "200 points of two classes form two interleaved half circles. The network predicts on a square far wider than "
        "the data. Entropy is in units of ln 2: 0 is certainty, 1 is a coin toss.",
        (TableLayout("Two moons", _MOON_COLUMNS),),
    ),
    _SWEEP,
    threads=1,
)


_OUTSIDE = 4.0
"""How far outside the data the uncertainty is measured, in raw units."""
_LINE = 201
"""Points along each drawn line."""
_FSVI_SETTINGS = {"prior": Constant(10.0), "num_context": 20, "kl_weight": 0.015, "stds": Stds(lr_scale=10.0)}
"""With the prior of published runs."""


def toy_regression(toy: Toy1D, epochs: int, order: Order) -> Experiment:
    """A 100-100 ReLU network on standardized data, with learned noise.

    `run snelson fsvi` takes up to a minute. Expected: the standard deviation of the function in the gap
    and 4 units outside is at least 3 times its median on the data; the noise is within 30% of 0.286.
    """
    settings = {**(_FSVI_SETTINGS if order.member == "fsvi" else {}), **order.settings}

    def make() -> Method:
        network = lambda: mlp(toy.x.shape[1], (100, 100), 1, nn.ReLU)  # noqa: E731
        likelihood = Gaussian(noise=0.5, learn_noise=True)
        return make_method(order.method, network, likelihood, context=make_context(toy), **settings)

    fit_settings = _fit_settings(order, epochs=epochs, batch_size=len(toy.x_raw), lr=1e-2)
    return Experiment(make, (toy.x, toy.y), fit_settings, lambda method: _evaluate(method, toy))


def make_context(toy: Toy1D) -> Context:
    """Half of the points lie anywhere in the figure, half between the outermost data.

    If all points were spread over the whole range, hardly any would fall into a gap.
    """
    data_range = float(toy.x_raw.min()), float(toy.x_raw.max())
    between, everywhere = (
        Dataset(toy.features(torch.linspace(low, high, 1001)[:, None])) for low, high in (data_range, toy.wide)
    )
    return Mixture([between, everywhere], [0.5, 0.5])


def _evaluate(method: Method, toy: Toy1D) -> Outcome:
    """The fit to the data, the noise, and how much the uncertainty of the function grows in gaps and outside.

    The metrics are in the units of the network's targets, the picture is in raw units.
    """
    p = _predict(method, toy.x)
    metrics = {
        "rmse": math.sqrt(_mean((p.mean - toy.y).square())),
        "log_likelihood": _mean(p.log_prob(toy.y)),
        "noise": float((p.variance - _function_std(p).square()).mean().sqrt()),
        **_std_ratios(method, toy, _function_std(p)),
    }
    bands = {"zoomed": _band(method, toy, toy.zoomed), "wide": _band(method, toy, toy.wide)}
    points = _lists(x=toy.x_raw.squeeze(1), y=toy.y_raw.squeeze(1))
    return Outcome(metrics, {"picture": {"kind": "curve", **points, **bands}})


def _std_ratios(method: Method, toy: Toy1D, on_data: Tensor) -> dict[str, float]:
    """The function's std in the least uncertain gap, and outside the data, divided by its median on the data."""
    typical = float(on_data.median())
    low, high = float(toy.x_raw.min()) - _OUTSIDE, float(toy.x_raw.max()) + _OUTSIDE
    places = toy.features(torch.tensor([low, high, *toy.gaps])[:, None])
    left, right, *in_gaps = (_function_std(_predict(method, places)) / typical).squeeze(1).tolist()
    return {"data_std": typical, "gap_std_ratio": min(in_gaps), "left_std_ratio": left, "right_std_ratio": right}


def _band(method: Method, toy: Toy1D, limits: tuple[float, float]) -> dict[str, list[Any]]:
    """The prediction along a line, in raw units: mean, and standard deviations of the function and of targets."""
    x = torch.linspace(*limits, _LINE)[:, None]
    p = _predict(method, toy.features(x))
    scale = toy.targets.std
    stds = {"function_std": scale * _function_std(p), "target_std": scale * p.variance.sqrt()}
    values = {"x": x, "mean": toy.targets.inverse(p.mean), **stds}
    return _lists(**{name: value.squeeze(1) for name, value in values.items()})


def _function_std(p: Predictive) -> Tensor:
    return p.samples.std(0, correction=0)


_COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("rmse", "RMSE", "lower"),
    ("log_likelihood", "log-likelihood", "higher"),
    ("noise", "noise"),
    ("data_std", "σ on the data"),
    ("gap_std_ratio", "σ in the gap", "", 1, 1.0, " ×"),
    ("left_std_ratio", "σ 4 left of the data", "", 1, 1.0, " ×"),
    ("right_std_ratio", "σ 4 right of the data", "", 1, 1.0, " ×"),
)


def _task(name: str, toy: Toy1D, epochs: int, title: str, about: str) -> Task:
    columns = tuple(Column(name, *each) for each in _COLUMNS)
    section = Section(title, about, (TableLayout(title, columns),))
    return Task(name, partial(toy_regression, toy, epochs), section, _SWEEP, threads=1)


TOY_REGRESSION_TASKS = (
    _task(
        "snelson",
        snelson(),
        3000,
        "Snelson",
        "148 points with one input. The points with 1.5 ≤ x ≤ 3 were removed, so the network has to bridge a gap. The "
        "table is in standardized units, the figure in the original ones.",
    ),
    _task(
        "oat1d", oat1d(), 4000, "OAT-1D", "100 almost noise-free points of a wavy function, in two clusters far apart."
    ),
    _task(
        "subspace",
        subspace(),
        3000,
        "Subspace inference",
        "400 points in three clusters; the network sees x/2 and (x/2)². The table has the narrower of two gaps.",
    ),
)
