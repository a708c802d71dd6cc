"""Regression on six tables of the UCI repository: the paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fsvi import metrics
from fsvi.functions.contexts import Uniform
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Gaussian, GaussianPredictive
from fsvi.methods import Method, Stds, make_method
from fsvi.networks import mlp
from paper import data
from paper.columns import Better, Column, TableLayout
from paper.data import Standardize
from paper.experiment import Experiment, Order, Outcome
from paper.task import Section, Sweep, Task

TABLES = ("boston", "concrete", "energy", "wine", "yacht", "protein")
PREFIX = "uci-"
_TEST = 0.1
_HIDDEN = 50


_LIMITS = {"quick": (5_000, 2_000), "smoke": (200, 20)}
"""The most rows and steps of the profiles that have limits."""
_SAMPLES = 100


@dataclass(frozen=True)
class _Tuned:
    """Settings chosen on held-out training rows: FSVI's, and the noise and training settings of all methods."""

    steps: int
    fsvi: Mapping[str, Any]
    batch_size: int = 128
    lr: float = 1e-2
    least_noise: float = 0.0
    """In standard deviations of the targets; 0.05 in the code of FBNN's authors, with which the paper compares."""


_FSVI = {"num_context": 16, "num_samples": 4, "stds": Stds(lr_scale=1.0)}
_SMALL_STDS = Stds((0.01, 0.02), lr_scale=1.0)
_TUNED = {
    "boston": _Tuned(250, {"prior": Constant(5.3), "kl_weight": 0.0003, "num_context": 64}),
    "concrete": _Tuned(
        14_000, {"prior": Constant(3.0), "kl_weight": 0.02, "stochastic": "last_layer"}, lr=2e-2, least_noise=0.25
    ),
    "energy": _Tuned(4_000, {"prior": Constant(1.0), "kl_weight": 0.02, "stds": Stds(lr_scale=3.0)}, least_noise=0.05),
    "wine": _Tuned(375, {"prior": Constant(10.0), "kl_weight": 0.0019, "num_context": 64}),
    "yacht": _Tuned(
        4_000, {"prior": Constant(1.0), "kl_weight": 0.005, "linearize": "exact", "stds": _SMALL_STDS}, least_noise=0.05
    ),
    "protein": _Tuned(
        60_000,
        {"prior": Constant(1.0), "kl_weight": None, "stochastic": "last_layer", "stds": _SMALL_STDS},
        batch_size=512,
        lr=2e-2,
    ),
}
_SLOW = "fbnn"
_SLOW_STEPS = 2_000
"""Steps of FBNN, which is the most expensive: ten seeds of protein take 25 minutes of one core with them."""

_WIDTH = 1.5
"""Half the width of the context's box, in standard deviations of each input."""


def uci(order: Order) -> Experiment:
    """A random 90/10 split of a table per seed, one hidden layer of 50 units, learned noise.

    The context is uniform on [−1.5, 1.5] in each standardized input. The paper uses the bounds of the training data.

    `reproduce uci` runs all six tables, ten seeds each. The paper's FSVI: RMSE 4.18 on concrete, 0.41 on energy,
    0.62 on wine, 0.51 on yacht, 4.25 on protein.
    """
    most_rows, most_steps = _LIMITS.get(order.profile, (None, None))
    name = order.task.removeprefix(PREFIX)
    table, tuned = data.load(name, "train"), _TUNED[name]
    x, y = (values[:most_rows] for values in (table.x, table.y))
    train, test = data.splits(len(x), _TEST, order.seed)
    inputs, targets = Standardize.of(x[train]), Standardize.of(y[train])
    settings = {**_method_settings(order.member, tuned), **order.settings}

    def make() -> Method:
        network = lambda: mlp(x.shape[1], (_HIDDEN,), 1, nn.ReLU)  # noqa: E731
        likelihood = Gaussian(noise=0.5, learn_noise=True, least_noise=tuned.least_noise)
        context = Uniform([-_WIDTH] * x.shape[1], [_WIDTH] * x.shape[1])
        return make_method(order.method, network, likelihood, context=context, **settings)

    def evaluate(method: Method) -> Outcome:
        p = method.predict(inputs(x[test]).float(), num_samples=_SAMPLES)
        assert isinstance(p, GaussianPredictive)
        return Outcome(metrics.evaluate_regression(p, y[test], targets), {})

    batches = max(1, len(train) // tuned.batch_size)
    is_slow = order.member == _SLOW
    steps = min(tuned.steps, _SLOW_STEPS if is_slow else tuned.steps, most_steps or tuned.steps)
    fit_settings = {
        "epochs": max(1, steps // batches),
        "batch_size": tuned.batch_size,
        "lr": tuned.lr,
        **order.fit_settings,
    }
    notes = {
        f"at most {most_rows or 0:,} rows and {most_steps or 0:,} steps": most_rows,
        "the whole Jacobian instead of jvp": settings.get("linearize") == "exact",
        "only the last layer is stochastic": settings.get("stochastic") == "last_layer",
        f"the learned noise is at least {tuned.least_noise} standard deviations": tuned.least_noise,
        f"{_SLOW_STEPS:,} steps": is_slow and tuned.steps > _SLOW_STEPS,
    }
    return Experiment(
        make,
        (inputs(x[train]).float(), targets(y[train]).float()),
        fit_settings,
        evaluate,
        [table],
        [note for note, holds in notes.items() if holds],
    )


def _method_settings(member: str, tuned: _Tuned) -> dict[str, Any]:
    """FSVI's tuned settings. GFSVI has its own defaults, and is random where FSVI is."""
    if member == "gfsvi":
        return {"stochastic": tuned.fsvi.get("stochastic", "all")}
    return {**_FSVI, **tuned.fsvi} if member == "fsvi" else {}


_CONTEXT_NOTE = (
    f"Context points of FSVI, GFSVI and FBNN are uniform within ±{_WIDTH} standard deviations of each input. The paper "
    "uses the bounds of the training data. Depending on the table, 34% to 77% of rows have an input outside our box."
)


def _layout(title: str, name: str, better: Better) -> TableLayout:
    columns = (Column(PREFIX + each, name, each.capitalize(), better) for each in TABLES)
    return TableLayout(title, tuple(columns), notes=(_CONTEXT_NOTE,))


_SECTION = Section(
    "UCI regression",
    "One hidden layer of 50 units on six tables, 90% of the rows for training; results in the tables' own units.",
    (_layout("RMSE", "rmse", "lower"), _layout("Log-likelihood", "log_likelihood", "higher")),
)
_SWEEP = Sweep("uci", dict.fromkeys(("fsvi", "gfsvi", "map", "mfvi", "fbnn", "ensemble:fsvi"), 10))

UCI_TASKS = tuple(Task(PREFIX + name, uci, _SECTION, _SWEEP, threads=1) for name in TABLES)
