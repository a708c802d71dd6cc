"""The Gaussian process as a prior: its kernel, its fit to targets, and what a file keeps of it."""

import pytest
import torch

import fsvi
from fsvi.functions.kernels import RBF, Kernel, Linear, Matern, Periodic
from fsvi.functions.priors import GaussianProcess
from fsvi.networks import Network


def test_the_prior_at_points_is_the_kernel_for_every_output(make):
    net, x = make("mlp", 6)
    split = Network(net).examined(x)
    prior = GaussianProcess(RBF(1.3, 0.6))
    kernel = RBF(1.3, 0.6)(x)
    prior.bind(split)
    p = prior.gaussian(x)
    assert p.mean.shape == (6, 2) and not p.mean.any()
    torch.testing.assert_close(p.covariance, kernel[None])
    joint = prior.gaussian(x).joint()
    assert joint.mean.shape == (12, 1)
    torch.testing.assert_close(joint.covariance[0], torch.kron(kernel, torch.eye(2, dtype=torch.float64)))


def test_the_lengthscale_is_the_median_distance_unless_it_is_given():
    x = torch.tensor([[0.0], [1.0], [3.0]])
    found, given = GaussianProcess(RBF(variance=2.0)), GaussianProcess(RBF(0.5))
    for prior in (found, given):
        prior.prepare(x)
    assert found.hyperparameters.tolist() == [2.0, 2.0] and given.hyperparameters.tolist() == [0.5, 1.0]


def table():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1].sin()


# Kernels -------------------------------------------------------------------------------------------------------------


def composed() -> Kernel:
    return (Periodic(2.0, 0.8) * RBF(1.5, columns=[1]) + Matern(0.5, [0.7, 1.1])) + Linear(0.3, 0.2, columns=[0])


def with_kernel(kernel, **settings):
    net = fsvi.networks.mlp(2, (4,), 1)
    prior = GaussianProcess(kernel, **settings)
    context = fsvi.contexts.Uniform([-3.0, -3.0], [3.0, 3.0])
    return fsvi.FSVI(net, fsvi.Gaussian(0.5, learn_noise=True), context, prior=prior, num_context=4)


def test_a_kernel_of_ones_own_is_the_covariance():
    method = with_kernel(composed())
    x, _ = table()
    torch.testing.assert_close(method.prior.gaussian(x[:5]).covariance[0], composed()(x[:5]))


@pytest.mark.parametrize("learn", [False, True])
def test_a_file_keeps_the_kernel_and_its_hyperparameters(tmp_path, learn):
    method = with_kernel(composed(), learn=learn)
    fsvi.fit(method, table(), epochs=1)
    method.save(tmp_path / "gp.fsvi")
    loaded = fsvi.load(tmp_path / "gp.fsvi")
    assert loaded.prior.kernel.config() == method.prior.kernel.config()
    x, _ = table()
    assert torch.equal(loaded.prior.gaussian(x).covariance, method.prior.gaussian(x).covariance)
    assert torch.equal(loaded.prior.hyperparameters, composed().start(x)) is not learn
