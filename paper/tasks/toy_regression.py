"""Regressions with one input and stretches without data: Snelson, OAT-1D and subspace inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.data.toy import Toy1D, oat1d, snelson, subspace
from fsvi.functions.contexts import Context, Dataset, Mixture
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Gaussian, Predictive
from fsvi.methods import Method, Stds, make_method
from fsvi.networks import mlp
from paper.columns import Column, TableLayout
from paper.experiment import Experiment, Order, Outcome
from paper.task import Section, Task
from paper.tasks.toys import TOY_SWEEP, as_lists, mean, predict, toy_fit_settings

_OUTSIDE = 4.0
"""How far outside the data the uncertainty is measured, in raw units."""
_LINE = 201
"""Points along each drawn line."""
_FSVI_SETTINGS = {"prior": Constant(10.0), "num_context": 20, "kl_weight": 0.015, "stds": Stds(lr_scale=10.0)}
"""With the prior of published runs."""


@dataclass(frozen=True)
class _Regression:
    """A toy regression.

    Attributes:
        load: Makes the data.
        gaps: The middle of every gap in the data, raw.
        epochs: Passes over the data.
        title: Its heading in the report.
        about: What is special about the data.
    """

    load: Callable[[], Toy1D]
    gaps: tuple[float, ...]
    epochs: int
    title: str
    about: str


_REGRESSIONS = {
    "snelson": _Regression(
        snelson,
        gaps=(2.25,),
        epochs=3000,
        title="Snelson",
        about="148 points with one input. The points with 1.5 ≤ x ≤ 3 were removed, so the network has to bridge a "
        "gap. The table is in standardized units, the figure in the original ones.",
    ),
    "oat1d": _Regression(
        oat1d,
        gaps=(0.0,),
        epochs=4000,
        title="OAT-1D",
        about="100 almost noise-free points of a wavy function, in two clusters far apart.",
    ),
    "subspace": _Regression(
        subspace,
        gaps=(-3.0, 3.0),
        epochs=3000,
        title="Subspace inference",
        about="400 points in three clusters; the network sees x/2 and (x/2)². The table has the narrower of two gaps.",
    ),
}


def toy_regression_recipe(order: Order) -> Experiment:
    """A 100-100 ReLU network on standardized data, with learned noise.

    `fsvi run snelson fsvi` takes up to a minute. Expected: the standard deviation of the function in the gap and 4
    units outside is at least 3 times its median on the data; the noise is within 30% of 0.286.
    """
    described = _REGRESSIONS[order.task]
    toy = described.load()
    settings = {**(_FSVI_SETTINGS if order.member == "fsvi" else {}), **order.settings}

    def make() -> Method:
        network = lambda: mlp(toy.x.shape[1], (100, 100), 1, nn.ReLU)  # noqa: E731
        likelihood = Gaussian(noise=0.5, learn_noise=True)
        return make_method(order.method, network, likelihood, context=make_context(toy), **settings)

    fit_settings = toy_fit_settings(order, epochs=described.epochs, batch_size=len(toy.x_raw), lr=1e-2)
    return Experiment(make, (toy.x, toy.y), fit_settings, lambda method: _evaluate(method, toy, described.gaps))


def make_context(toy: Toy1D) -> Context:
    """Half of the points lie anywhere in the figure, half between the outermost data.

    If all points were spread over the whole range, hardly any would fall into a gap.
    """
    data_range = float(toy.x_raw.min()), float(toy.x_raw.max())
    between, everywhere = (
        Dataset(toy.features(torch.linspace(low, high, 1001)[:, None])) for low, high in (data_range, toy.wide)
    )
    return Mixture([between, everywhere], [0.5, 0.5])


def _evaluate(method: Method, toy: Toy1D, gaps: tuple[float, ...]) -> Outcome:
    """The fit to the data, the noise, and how much the uncertainty of the function grows in gaps and outside.

    The metrics are in the units of the network's targets, the picture is in raw units.
    """
    p = predict(method, toy.x)
    metrics = {
        "rmse": math.sqrt(mean((p.mean - toy.y).square())),
        "log_likelihood": mean(p.log_prob(toy.y)),
        "noise": float(_noise_variance(p).mean().sqrt()),
    }
    picture = {"kind": "curve", "x": toy.x_raw.squeeze(1), "y": toy.y_raw.squeeze(1)}
    bands = {"zoomed": _band(method, toy, toy.zoomed), "wide": _band(method, toy, toy.wide)}
    ratios = _std_ratios(method, toy, gaps, _function_std(p))
    return Outcome({**metrics, **ratios}, {"picture": as_lists({**picture, **bands})})


def _std_ratios(method: Method, toy: Toy1D, gaps: tuple[float, ...], on_data: Tensor) -> dict[str, float]:
    """The function's std in the least uncertain gap, and outside the data, divided by its median on the data."""
    typical = float(on_data.median())
    low, high = float(toy.x_raw.min()) - _OUTSIDE, float(toy.x_raw.max()) + _OUTSIDE
    places = toy.features(torch.tensor([low, high, *gaps])[:, None])
    left, right, *in_gaps = (_function_std(predict(method, places)) / typical).squeeze(1).tolist()
    return {"data_std": typical, "gap_std_ratio": min(in_gaps), "left_std_ratio": left, "right_std_ratio": right}


def _band(method: Method, toy: Toy1D, limits: tuple[float, float]) -> dict[str, Tensor]:
    """The prediction along a line, in raw units: mean, and standard deviations of the function and of targets."""
    x = torch.linspace(*limits, _LINE)[:, None]
    p = predict(method, toy.features(x))
    scale = toy.targets.std
    stds = {"function_std": scale * _function_std(p), "target_std": scale * p.variance.sqrt()}
    values = {"x": x, "mean": toy.targets.inverse(p.mean), **stds}
    return {name: value.squeeze(1) for name, value in values.items()}


def _function_std(p: Predictive) -> Tensor:
    return p.samples.std(0, correction=0)


def _noise_variance(p: Predictive) -> Tensor:
    return p.variance - _function_std(p).square()


_COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("rmse", "RMSE", "typical error of the mean at the data", "lower"),
    ("log_likelihood", "log-likelihood", "mean log density of the data", "higher"),
    ("noise", "noise", "learned standard deviation of the observations around the function"),
    ("data_std", "σ on the data", "median standard deviation of the function at the data"),
    ("gap_std_ratio", "σ in the gap", "divided by σ on the data", "", 1, 1.0, " ×"),
    ("left_std_ratio", "σ 4 left of the data", "divided by σ on the data", "", 1, 1.0, " ×"),
    ("right_std_ratio", "σ 4 right of the data", "divided by σ on the data", "", 1, 1.0, " ×"),
)


def _task(name: str, described: _Regression) -> Task:
    columns = tuple(Column(name, *each) for each in _COLUMNS)
    section = Section(described.title, described.about, (TableLayout(described.title, columns),))
    return Task(name, toy_regression_recipe, section, TOY_SWEEP, threads=1)


TOY_REGRESSION_TASKS = tuple(_task(name, described) for name, described in _REGRESSIONS.items())
