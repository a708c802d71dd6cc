"""fsvi.Laplace against laplace-torch, an implementation by others; requirements.txt here has what these tests need.

Biases have a Kronecker block of their own there and share their layer's here, so "kron" is compared without biases.
"""

import importlib
import math
import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi_cases import laplace_moments

NAMES = {"last_layer": ("last_layer", "full"), "kron": ("all", "kron"), "diagonal": ("all", "diag")}
STRUCTURES = pytest.mark.parametrize("structure", NAMES)
NOISE, PRECISION = 0.5, 1.7


def dense(outputs, bias):
    layers = [nn.Linear(3, 6, bias=bias), nn.Tanh(), nn.Linear(6, 5, bias=bias), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(5, outputs, bias=bias)).double(), (3,)


def convolutional(outputs, bias):
    layers = [
        nn.Conv2d(2, 4, 3, padding=1, stride=2, bias=bias),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, bias=bias),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(12, outputs, bias=bias)).double(), (2, 6, 6)


NETWORKS = pytest.mark.parametrize("network", [dense, convolutional])


def foreign():
    """The other library, which takes seconds to import."""
    if os.environ.get("CI"):  # where a skipped comparison would go unnoticed
        return importlib.import_module("laplace")
    return pytest.importorskip("laplace", reason="laplace-torch is not installed: run `make test`")


def both(network, structure, likelihood, y):
    """Our method and theirs around the same network, and new inputs."""
    outputs = int(y.max()) + 1 if y.dim() == 1 else y.shape[1]
    net, shape = network(outputs, bias=structure != "kron")
    x, new = torch.randn(len(y), *shape).double(), torch.randn(5, *shape).double()
    trained = fsvi.MAP(net, likelihood, prior_variance=1 / PRECISION)
    ours = fsvi.Laplace.from_trained(trained, (x, y), structure=structure, optimize_prior=False)
    subset, kind = NAMES[structure]
    settings = dict(prior_precision=torch.tensor(PRECISION).double())
    if y.dim() == 2:
        settings["sigma_noise"] = torch.tensor(NOISE).double()
    task = "classification" if y.dim() == 1 else "regression"
    theirs = foreign().Laplace(net, task, subset_of_weights=subset, hessian_structure=kind, **settings)
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=8))
    return ours, theirs, new


def assert_same_evidence(ours, theirs):
    assert float(ours.log_marginal_likelihood()) == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-6)


@STRUCTURES
@NETWORKS
def test_regression(network, structure):
    ours, theirs, new = both(network, structure, fsvi.Gaussian(NOISE), torch.randn(20, 2).double())
    mean, covariance = laplace_moments(ours, new)
    their_mean, their_covariance = theirs(new)
    torch.testing.assert_close(mean, their_mean)
    torch.testing.assert_close(covariance, their_covariance, rtol=1e-5, atol=1e-7)
    assert_same_evidence(ours, theirs)


@STRUCTURES
@NETWORKS
def test_classification(network, structure):
    ours, theirs, new = both(network, structure, fsvi.Categorical(), torch.arange(20) % 3)
    mean, covariance = laplace_moments(ours, new)
    scaled = mean / (1 + math.pi / 8 * covariance.diagonal(dim1=1, dim2=2)).sqrt()
    torch.testing.assert_close(scaled.softmax(-1), theirs(new, link_approx="probit"), rtol=1e-5, atol=1e-7)
    assert_same_evidence(ours, theirs)
    drawn, num = ours.predict(new, num_samples=4000), 4000
    torch.manual_seed(0)
    their_mean = theirs(new, link_approx="mc", n_samples=num)
    errors = (2 * drawn.samples.var(0) / num).sqrt()
    assert float(((drawn.mean - their_mean) / errors).abs().max()) < 4.5


@STRUCTURES
@pytest.mark.filterwarnings("ignore:By default `link_approx` is:UserWarning")  # concerns predictions, not evidence
def test_the_prior_precision_of_the_largest_evidence(structure):
    ours, theirs, _ = both(dense, structure, fsvi.Categorical(), torch.arange(20) % 3)
    theirs.optimize_prior_precision(method="marglik", n_steps=500, lr=0.1)
    best = ours.posterior.best_precision()
    assert best == pytest.approx(float(theirs.prior_precision.detach()), rel=1e-2)
    assert float(ours.log_marginal_likelihood(best)) >= float(theirs.log_marginal_likelihood()) - 1e-6
