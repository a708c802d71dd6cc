"""The paper's four toy tasks as recipes: what to train on, with which network and settings, and what to measure.

A recipe does not know the method. `recipe.train(make_method)` calls `make_method(recipe)` for a fresh one, so that any
method can be trained on the same task and drawn in the same figure; `METHODS` holds those that the demo shows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fsvi.data.toy import Toy1D, oat1d, snelson, subspace, two_moons
from fsvi.functions.contexts import Context, Dataset, Mixture, Uniform
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Categorical, Gaussian, Likelihood
from fsvi.methods import FSVI, MAP, MFVI, Ensemble, Method, Stds
from fsvi.networks import mlp
from fsvi.predictive import Predictive
from fsvi.training import fit

Array: TypeAlias = NDArray[np.float32]

_DRAWS = 100
_BATCH = 8192
_FAR, _NEAR = 3.0, 0.3
_OUTSIDE = 4.0


@dataclass(frozen=True)
class Surface:
    """Predictions of class 1 on a square grid, and the points that were learned from.

    Attributes:
        x: Training inputs, (n, 2).
        y: Their labels, (n,).
        axis: The grid's coordinates, the same for both inputs, (g,).
        mean: Probability of class 1, (g, g); rows are the second input.
        variance: Variance of that probability over draws of the function, (g, g).
    """

    x: Array
    y: Array
    axis: Array
    mean: Array
    variance: Array


@dataclass(frozen=True)
class Band:
    """A regression's prediction along a line, in raw units: inputs, mean, and two standard deviations, each (n,).

    `function_std` is that of the function alone, `target_std` that of an observation, noise included.
    """

    x: Array
    mean: Array
    function_std: Array
    target_std: Array


@dataclass(frozen=True)
class Curve:
    """A regression's data, and its prediction close to them and far around them, in raw units."""

    x: Array
    y: Array
    zoomed: Band
    wide: Band


@dataclass(frozen=True)
class Evaluation:
    """What a trained method is worth on a task: numbers for the tables, and what a figure needs."""

    metrics: dict[str, float]
    picture: Surface | Curve


@dataclass(frozen=True)
class Recipe(ABC):
    """A task with everything but the method.

    Attributes:
        name: The task's name, in file names too.
        title: The task's name for people.
        make_net: Makes a freshly initialised network.
        likelihood: How targets arise from its outputs.
        context: Where methods that look beyond the data do so.
        fsvi_settings: Arguments of `FSVI` that differ from its defaults.
        fit_settings: Arguments of `fit` that differ from its defaults.
    """

    name: str
    title: str
    make_net: Callable[[], nn.Module]
    likelihood: Likelihood
    context: Context
    fsvi_settings: Mapping[str, Any] = field(default_factory=dict)
    fit_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def data(self) -> tuple[Tensor, Tensor]:
        """Training inputs and targets as the network sees them."""

    @abstractmethod
    def evaluate(self, method: Method) -> Evaluation:
        """Measure a trained method, and predict what the figures show."""

    def train(self, make_method: MakeMethod, seed: int = 0, progress: bool | None = False) -> Method:
        """Make a method and train it; the seed decides the network's initial parameters and the training's noise."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            method = make_method(self)
        fit(method, self.data, seed=seed, progress=progress, **self.fit_settings)
        return method

    def shortened(self, epochs: int) -> Recipe:
        """The same recipe with so few epochs that it only shows that everything works."""
        return replace(self, fit_settings={**self.fit_settings, "epochs": epochs})


MakeMethod: TypeAlias = Callable[[Recipe], Method]
"""Builds an untrained method for a recipe."""


@dataclass(frozen=True, kw_only=True)
class Classification(Recipe):
    """Two classes in the plane, predicted on a grid that reaches far beyond the data.

    Attributes:
        train_set: Inputs (n, 2) and labels (n,).
        test_set: Held-out points of the same kind.
        reach: The grid covers [−reach, reach]².
        steps: Grid points along each side.
    """

    train_set: tuple[Tensor, Tensor]
    test_set: tuple[Tensor, Tensor]
    reach: float = 6.0
    steps: int = 121

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """The training set."""
        return self.train_set

    def evaluate(self, method: Method) -> Evaluation:
        """Accuracy and likelihood on held-out points; entropy, in units of ln 2, near the data and far from them."""
        axis = torch.linspace(-self.reach, self.reach, self.steps)
        grid = torch.cartesian_prod(axis, axis).flip(1)
        p = _predict(method, grid)
        mean, variance = (value[:, 1].reshape(self.steps, self.steps) for value in (p.mean, p.variance))
        x, y = self.train_set
        picture = Surface(*(_array(value) for value in (x, y, axis, mean, variance)))
        return Evaluation({**self._held_out(method), **self._entropies(grid, p)}, picture)

    def _held_out(self, method: Method) -> dict[str, float]:
        x, y = self.test_set
        p = _predict(method, x)
        return {"accuracy": _mean(p.mean.argmax(-1) == y), "nll": -_mean(p.log_prob(y))}

    def _entropies(self, grid: Tensor, p: Predictive) -> dict[str, float]:
        entropy = torch.special.entr(p.mean).sum(-1) / math.log(2)
        distance = torch.cdist(grid, self.train_set[0]).amin(1)
        far, near = entropy[distance >= _FAR], entropy[distance <= _NEAR]
        return {"far_entropy": _mean(far), "far_entropy_min": float(far.min()), "near_entropy": _mean(near)}


@dataclass(frozen=True, kw_only=True)
class Regression(Recipe):
    """One input, one target, and stretches without data.

    Attributes:
        toy: The data, with the ranges to draw.
        gaps: Middle of every gap in the data, raw.
        steps: Points along each drawn line.
    """

    toy: Toy1D
    gaps: tuple[float, ...]
    steps: int = 401

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets as the network sees them."""
        return self.toy.x, self.toy.y

    def evaluate(self, method: Method) -> Evaluation:
        """Fit to the data, noise, and how much less certain the function is in gaps and outside than on the data.

        All numbers are in the units in which the network sees the targets; the picture is in raw units.
        """
        x, y = self.data
        p = _predict(method, x)
        metrics = {
            "rmse": math.sqrt(_mean((p.mean - y).square())),
            "log_likelihood": _mean(p.log_prob(y)),
            "noise": float(_noise_variance(p).mean().sqrt()),
        }
        zoomed, wide = (self._band(method, limits) for limits in (self.toy.zoomed, self.toy.wide))
        picture = Curve(_array(self.toy.x_raw.squeeze(1)), _array(self.toy.y_raw.squeeze(1)), zoomed, wide)
        return Evaluation({**metrics, **self._std_ratios(method, _function_std(p))}, picture)

    def _std_ratios(self, method: Method, on_data: Tensor) -> dict[str, float]:
        """The function's std at the smallest gap, and `_OUTSIDE` raw units outside, over its median on the data."""
        typical = float(on_data.median())
        low, high = float(self.toy.x_raw.min()) - _OUTSIDE, float(self.toy.x_raw.max()) + _OUTSIDE
        places = self.toy.features(torch.tensor([low, high, *self.gaps])[:, None])
        left, right, *gaps = (_function_std(_predict(method, places)) / typical).squeeze(1).tolist()
        return {"data_std": typical, "gap_std_ratio": min(gaps), "left_std_ratio": left, "right_std_ratio": right}

    def _band(self, method: Method, limits: tuple[float, float]) -> Band:
        x = torch.linspace(*limits, self.steps)[:, None]
        p = _predict(method, self.toy.features(x))
        scale = self.toy.targets.std
        values = x, self.toy.targets.inverse(p.mean), scale * _function_std(p), scale * p.variance.sqrt()
        return Band(*(_array(value.squeeze(1)) for value in values))


def make_fsvi(recipe: Recipe) -> FSVI:
    """FSVI with the recipe's settings."""
    return FSVI(recipe.make_net(), recipe.likelihood, recipe.context, **recipe.fsvi_settings)


def make_mfvi(recipe: Recipe) -> MFVI:
    """MFVI with its defaults."""
    return MFVI(recipe.make_net(), recipe.likelihood)


def make_ensemble(recipe: Recipe) -> Ensemble:
    """Ten networks, each trained the ordinary way."""
    return Ensemble(lambda: MAP(recipe.make_net(), recipe.likelihood), size=10)


METHODS: dict[str, MakeMethod] = {"FSVI": make_fsvi, "MFVI": make_mfvi, "MAP ensemble": make_ensemble}
"""The methods that the demo trains on every task, by the name that figures and tables give them."""


# Recipes ------------------------------------------------------------------------------------------------------------


def two_moons_recipe() -> Classification:
    """200 points with noise 0.2, a 30-30 tanh network, context U[−10, 10]²; everything else is the library's default.

    Expected: accuracy ≥ 0.93, NLL ≤ 0.20; entropy in units of ln 2 at least 0.97 on average far from the data, at most
    0.35 near them.
    """
    return Classification(
        name="two-moons",
        title="Two moons",
        make_net=lambda: mlp(2, (30, 30), 2, nn.Tanh),
        likelihood=Categorical(),
        context=Uniform(low=[-10.0, -10.0], high=[10.0, 10.0]),
        train_set=two_moons(200, noise=0.2, seed=0),
        test_set=two_moons(1000, noise=0.2, seed=1),
    )


def snelson_recipe() -> Regression:
    """148 points with a gap at 1.5 ≤ x ≤ 3, inputs and targets standardised.

    Expected: the function's std in the gap and 4 units outside at least 3 times its median on the data; noise within
    30% of 0.286.
    """
    return _regression(snelson(), "Snelson", gaps=(2.25,))


def oat1d_recipe() -> Regression:
    """100 points of a sum of cosines, in two clusters around −5 and 5."""
    return _regression(oat1d(), "OAT-1D", gaps=(0.0,), epochs=4000)


def subspace_recipe() -> Regression:
    """400 points in three clusters; the network sees (x/2, (x/2)²)."""
    return _regression(subspace(), "Subspace inference", gaps=(-3.0, 3.0))


RECIPES: dict[str, Callable[[], Recipe]] = {
    "two-moons": two_moons_recipe,
    "snelson": snelson_recipe,
    "oat1d": oat1d_recipe,
    "subspace": subspace_recipe,
}
"""Every recipe by its name."""


def _regression(toy: Toy1D, title: str, gaps: tuple[float, ...], epochs: int = 3000) -> Regression:
    """The paper's network for 1D regression, and the prior of published runs.

    Context points lie where the figures look, and half of them between the outermost data: spread over the whole range,
    hardly any would fall into a gap.
    """
    data_range = float(toy.x_raw.min()), float(toy.x_raw.max())
    between, everywhere = (
        Dataset(toy.features(torch.linspace(low, high, 1001)[:, None])) for low, high in (data_range, toy.wide)
    )
    return Regression(
        name=toy.name,
        title=title,
        make_net=lambda: mlp(toy.x.shape[1], (100, 100), 1, nn.ReLU),
        likelihood=Gaussian(noise=0.5, learn_noise=True),
        context=Mixture([between, everywhere], [0.5, 0.5]),
        fsvi_settings={"prior": Constant(10.0), "num_context": 20, "kl_weight": 0.015, "stds": Stds(lr_scale=10.0)},
        fit_settings={"epochs": epochs, "batch_size": len(toy.x_raw), "lr": 1e-2},
        toy=toy,
        gaps=gaps,
    )


# Measures -----------------------------------------------------------------------------------------------------------


def _predict(method: Method, x: Tensor) -> Predictive:
    return method.predict(x, num_samples=_DRAWS, batch_size=_BATCH)


def _function_std(p: Predictive) -> Tensor:
    return p.samples.std(0, correction=0)


def _noise_variance(p: Predictive) -> Tensor:
    return p.variance - _function_std(p).square()


def _mean(values: Tensor) -> float:
    return float(values.float().mean())


def _array(values: Tensor) -> Array:
    return values.detach().to(torch.float32).numpy()
