"""The toy tasks as experiments, so that `fsvi run` and `fsvi reproduce` know them like any other."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from fsvi.experiments.experiment import Experiment, Order, Outcome
from fsvi.experiments.tasks.toy import RECIPES, Band, Curve, Surface
from fsvi.methods import Method, make_method

_EPOCHS = {"paper": None, "quick": 500, "smoke": 5}
_GRID, _LINE = 41, 134
"""points along each side of the two moons' picture, and along each curve, in a result file"""


def toy(order: Order) -> Experiment:
    """One of the paper's toy tasks, with the network, the context and the settings of its recipe.

    `fsvi run two-moons fsvi` takes about 20 seconds: entropy far from the data above 0.97 of a coin toss's, below 0.35
    near them. The 1D tasks take up to a minute: the function's deviation grows where there are no data.
    """
    recipe = RECIPES[order.task]()
    settings = {**(recipe.fsvi_settings if order.member == "fsvi" else {}), **order.settings}
    epochs = _EPOCHS[order.profile]
    shortened = {} if epochs is None else {"epochs": epochs}

    def make() -> Method:
        return make_method(order.method, recipe.make_net, recipe.likelihood, context=recipe.context, **settings)

    def evaluate(method: Method) -> Outcome:
        found = recipe.evaluate(method)
        return Outcome(found.metrics, {"picture": _plain(found.picture)})

    return Experiment(make, recipe.data, {**recipe.fit_settings, **shortened, **order.fit_settings}, evaluate)


def _plain(picture: Surface | Curve) -> dict[str, Any]:
    coarse = _coarse_surface(picture) if isinstance(picture, Surface) else _coarse_curve(picture)
    return {"kind": type(picture).__name__.lower(), **_rounded(asdict(coarse))}


def _coarse_surface(picture: Surface) -> Surface:
    step = max(1, (len(picture.axis) - 1) // (_GRID - 1))
    grids = (grid[::step, ::step] for grid in (picture.mean, picture.variance))
    return Surface(picture.x, picture.y, picture.axis[::step], *grids)


def _coarse_curve(picture: Curve) -> Curve:
    step = max(1, len(picture.wide.x) // _LINE)
    bands = (Band(*(values[::step] for values in vars(band).values())) for band in (picture.zoomed, picture.wide))
    return Curve(picture.x, picture.y, *bands)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else np.asarray(value, np.float64).round(4).tolist()
        for name, value in values.items()
    }
