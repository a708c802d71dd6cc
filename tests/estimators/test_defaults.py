"""The defaults' rules, and that the promises hold with them on tables that come with scikit-learn."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.model_selection import train_test_split

import fsvi
from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.estimators.defaults import (
    BALANCE,
    LOGIT_VARIANCE,
    NUM_CONTEXT,
    TARGET_VARIANCE,
    fsvi_settings,
    num_held_out,
    reestimate_noise,
    widen,
)
from fsvi.networks import table_mlp
from fsvi.posteriors.mean_field import Stds
from paper.bench.tables import Table, check_promises, measure_fit, measure_uncertainty


@pytest.mark.parametrize(
    ("rows", "fraction", "expected"),
    [
        (40, None, 0),
        (75, None, 15),
        (300, None, 60),
        (1000, None, 100),
        (5000, None, 500),
        (1000, 0.0, 0),
        (100, 0.2, 20),
        (90, 0.1, 0),
    ],
)
def test_small_tables_hold_out_a_larger_share(rows, fraction, expected):
    assert num_held_out(rows, fraction) == expected


def test_the_weight_counts_a_mean_over_points_and_outputs():
    settings = fsvi_settings(fsvi.Categorical(), 5, {})
    assert settings["kl_weight"] == pytest.approx(BALANCE / (NUM_CONTEXT * 5))
    assert settings["prior"].variance == LOGIT_VARIANCE
    settings = fsvi_settings(fsvi.Gaussian(), 1, {"num_context": 10})
    assert settings["kl_weight"] == pytest.approx(BALANCE / 10) and settings["prior"].variance == TARGET_VARIANCE
    assert fsvi_settings(fsvi.Gaussian(), 1, {"kl_weight": 3.0})["kl_weight"] == 3.0


def linear_method(noise=0.1):
    method = fsvi.MAP(torch.nn.Linear(1, 1).double(), fsvi.Gaussian(noise, learn_noise=True))
    with torch.no_grad():
        method.net.weight.fill_(1.0)
        method.net.bias.fill_(0.0)
    return method


def test_noise_is_the_held_out_rows_own_up_to_the_learned_one():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 1, generator=generator).double()
    residuals = 0.5 * torch.randn(30, 1, generator=generator).double()
    method = linear_method()
    reestimate_noise(method, x, x + residuals)

    def loss(variance):
        rows = -norm.logpdf(residuals.numpy(), scale=math.sqrt(variance)).sum()
        return rows + 5 * 0.5 * (0.1**2 / variance + math.log(variance))

    best = minimize_scalar(loss, bounds=(1e-4, 4), method="bounded").x
    assert float(method.likelihood.noise) == pytest.approx(math.sqrt(1.1 * best * 32 / 30), rel=0.01)


def test_noise_leaves_out_the_functions_own_variance():
    generator = torch.Generator().manual_seed(0)
    x = torch.ones(4000, 1).double()
    y = x + torch.randn(4000, 1, generator=generator).double()
    plain = linear_method()
    reestimate_noise(plain, x, y)
    method = fsvi.FSVI(plain.net, fsvi.Gaussian(0.1, learn_noise=True), stds=Stds((0.6, 0.6)), stochastic="last_layer")
    spread = method.predict(x).samples.var(0, correction=0).mean()
    reestimate_noise(method, x, y)
    total = float(method.likelihood.noise.square() + spread)
    assert float(plain.likelihood.noise) == pytest.approx(math.sqrt(1.1), abs=0.05)
    assert total == pytest.approx(float(plain.likelihood.noise.square()), rel=0.12) and spread > 0.3


def test_a_fixed_noise_and_labels_stay():
    method = fsvi.MAP(torch.nn.Linear(1, 1).double(), fsvi.Gaussian(0.1))
    reestimate_noise(method, torch.ones(20, 1).double(), torch.zeros(20, 1).double())
    assert float(method.likelihood.noise) == pytest.approx(0.1)
    method = fsvi.MAP(torch.nn.Linear(1, 2).double(), fsvi.Categorical())
    reestimate_noise(method, torch.ones(20, 1).double(), torch.zeros(20, dtype=torch.long))


def test_the_second_stage_keeps_the_function_and_widens_it_elsewhere():
    torch.manual_seed(0)
    x = torch.randn(200, 3).double()
    start = fsvi.MAP(table_mlp(x, (20,), 1).double(), fsvi.Gaussian(0.2, learn_noise=True))
    before = start.predict(x)
    method, history = widen(start, (x, x[:, :1]), None, {}, steps=60, seed=0, progress=False)
    after, far = method.predict(x), method.predict(x + 8)
    assert history.epochs == 30 and torch.equal(start.predict(x).mean, before.mean)
    assert (after.mean - before.mean).square().mean().sqrt() < 0.05
    assert after.samples.std(0).mean() < 0.1 and far.samples.std(0).mean() > 1.5
    assert float(method.likelihood.noise) == pytest.approx(0.2) and not method.likelihood.learn_noise


def test_an_own_network_learns_where_the_data_end():
    torch.manual_seed(0)
    x = torch.randn(200, 3).double()
    layers = torch.nn.Linear(3, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1)
    start = fsvi.MAP(torch.nn.Sequential(*layers).double(), fsvi.Gaussian(0.2, learn_noise=True))
    method, history = widen(start, (x, x[:, :1]), None, {}, steps=60, seed=0, progress=False)
    assert history.epochs == 3 * 30
    assert not torch.equal(method.net[0].weight, start.net[0].weight)
    near, far = (method.predict(rows).samples.std(0).mean() for rows in (x, x + 8))
    assert far > 3 * near


def fitted(kind, table, model):
    """What the bench measures, on one split."""
    x, y = table.load()
    stratify = y if table.is_classification else None
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0, stratify=stratify)
    model = kind(model, random_state=0).fit(x_train, y_train)
    scale = 1.0 if table.is_classification else float(np.std(y_train))
    row = measure_fit(model, table, x_test, y_test, scale)
    return row | measure_uncertainty(model, table, (x_train, y_train), x_test[:40], 0)


@pytest.mark.parametrize(
    ("kind", "load"),
    [(FSVIClassifier, load_iris), (FSVIClassifier, load_wine), (FSVIRegressor, load_diabetes)],
)
def test_the_promises_hold_with_defaults(kind, load):
    table = Table(load.__name__, kind is FSVIClassifier, lambda: load(return_X_y=True))
    models = {name: fitted(kind, table, name) for name in ("fsvi", "map")}
    if table.is_classification:  # one split of some forty test rows: a single row is more than a point
        models["map"]["accuracy"] -= 0.02
        models["map"]["nll"] += 0.02
    else:  # two standard errors of the coverage of some hundred test rows
        found = models["fsvi"]["coverage"]
        models["fsvi"]["coverage"] += np.clip(0.95 - found, -0.04, 0.04)
    result = {"kind": "classification" if table.is_classification else "regression", "models": models}
    assert [name for name, holds in check_promises(result).items() if not holds] == []
