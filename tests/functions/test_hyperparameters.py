"""Marginal likelihoods and their largest, against torch.distributions and scikit-learn."""

import math

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel
from torch.distributions import MultivariateNormal

from fsvi.functions.hyperparameters import fit_hyperparameters, log_marginal_likelihood
from fsvi.functions.kernels import RBF, Linear, Matern, Periodic
from fsvi.functions.priors import GaussianProcess
from fsvi.networks.distance import median_distance


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def draw(num, lengthscale, variance, noise, targets=1, seed=0):
    """Inputs and targets drawn from the process itself."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(num, 1, generator=generator, dtype=torch.float64)
    covariance = RBF(lengthscale, variance)(x) + noise**2 * torch.eye(num)
    return x, torch.linalg.cholesky(covariance) @ torch.randn(num, targets, generator=generator, dtype=torch.float64)


def test_the_marginal_likelihood_is_a_gaussian_s():
    x, y = draw(7, 1.0, 1.0, 0.3, targets=2)
    kernel = RBF(0.8, 1.5)(x)
    noise = torch.tensor([0.1, 0.4], dtype=torch.float64)
    expected = sum(
        MultivariateNormal(torch.zeros(7, dtype=torch.float64), kernel + v * torch.eye(7)).log_prob(y[:, q])
        for q, v in enumerate(noise)
    )
    torch.testing.assert_close(log_marginal_likelihood(kernel, y, noise), expected)


def test_the_marginal_likelihood_s_gradient_is_that_of_a_gaussian():
    x, y = draw(6, 1.0, 1.0, 0.3, targets=2)
    given = [RBF(0.8, 1.5)(x), y, torch.tensor([0.1, 0.4], dtype=torch.float64)]

    def by_torch(kernel, y, noise):
        covariances = kernel + noise[:, None, None] * torch.eye(6, dtype=torch.float64)
        return MultivariateNormal(torch.zeros(6, dtype=torch.float64), covariances).log_prob(y.T).sum()

    ours, theirs = (
        torch.autograd.grad(density(*values), values)
        for density, values in (
            (f, [v.clone().requires_grad_() for v in given]) for f in (log_marginal_likelihood, by_torch)
        )
    )
    torch.testing.assert_close(ours, theirs)


def test_fitted_hyperparameters_are_at_least_as_likely_as_the_true_ones_and_close_to_them():
    """Five functions at 40 points each have some 30 degrees of freedom for the variance, known to exp(±0.25)."""
    x, y = draw(40, 0.7, 2.0, 0.2, targets=5)
    ones = torch.ones(5, dtype=torch.float64)
    values, noise = fit_hyperparameters(RBF(), x, y, scalar([2.0, 1.0]), ones, learn_noise=True)

    def likelihood(values, noise):
        return float(log_marginal_likelihood(RBF()(x, values), y, noise.square()))

    assert likelihood(values, noise) > likelihood(scalar([0.7, 2.0]), 0.2 * ones)
    assert abs(math.log(float(values[0]) / 0.7)) < 0.2
    assert abs(math.log(float(values[1]) / 2.0)) < 0.5
    assert noise.shape == (5,) and abs(float(noise.log().mean()) - math.log(0.2)) < 0.2


def test_repeated_inputs_and_targets_without_noise_can_be_fitted():
    start = scalar([1.0, 1.0])
    values, noise = fit_hyperparameters(RBF(), torch.zeros(8, 1), torch.ones(8, 1), start, start[:1], learn_noise=True)
    assert bool(values.isfinite().all()) and bool(noise.isfinite().all())


def test_fitting_moves_the_hyperparameters_however_often():
    x, y = draw(30, 0.5, 1.0, 0.1)
    prior = GaussianProcess()
    prior.fit(x, y, scalar([0.5]), learn_noise=True)
    start = torch.stack([scalar(median_distance(x)), y.square().mean()])
    values, _ = fit_hyperparameters(RBF(), x, y, start, scalar([0.5]), learn_noise=True)
    torch.testing.assert_close(prior.hyperparameters, values)
    assert abs(float(prior.hyperparameters[0]) - 0.5) < 0.3
    before = prior.hyperparameters.clone()
    prior.fit(x, y, scalar([0.5]), learn_noise=True)
    assert torch.equal(prior.hyperparameters, before)


def test_the_scale_of_targets_and_the_place_of_inputs_do_not_matter():
    x, y = draw(30, 0.5, 1.0, 0.1)
    plain, moved = GaussianProcess(), GaussianProcess()
    plain.fit(x, y, scalar([0.5]), learn_noise=True)
    moved.fit(x + 1e6, 1e5 * y, scalar([5e4]), learn_noise=True)
    lengthscale, variance = plain.hyperparameters
    torch.testing.assert_close(moved.hyperparameters, torch.stack([lengthscale, 1e10 * variance]), rtol=1e-2, atol=0)


@pytest.mark.filterwarnings("ignore:The optimal value found for dimension 2")  # the column that does not matter
def test_the_fit_is_scikit_learns():
    """Two columns that matter differently, and one that does not matter at all."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(60, 3, generator=generator, dtype=torch.float64)
    y = (2 * x[:, :1]).sin() + 0.3 * x[:, 1:2] + 0.1 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    values, noise = fit_hyperparameters(
        RBF(), x, y, torch.ones(4, dtype=torch.float64), scalar([0.5]), learn_noise=True
    )
    lengthscale = values[:3]
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * kernels.RBF([1.0] * 3, (1e-2, 1e2)) + WhiteKernel(0.25, (1e-5, 1e3))
    theirs = GaussianProcessRegressor(kernel, alpha=1e-6, n_restarts_optimizer=4, random_state=0).fit(x, y[:, 0])
    ours = float(log_marginal_likelihood(RBF()(x, values), y, noise.square()))
    assert ours == pytest.approx(theirs.log_marginal_likelihood_value_, abs=0.05)
    assert float(lengthscale[0]) < 2 and float(lengthscale[1]) > 3 and float(lengthscale[2]) == pytest.approx(100)
    assert float(noise) == pytest.approx(0.1, rel=0.4)


UNIT, WIDE = ConstantKernel(1.0, (1e-3, 1e3)), (1e-2, 1e2)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Periodic(1.2), kernels.ExpSineSquared(1.0, 1.2, WIDE, (0.12, 12.0))),
        (Matern(1.5, 1.0), kernels.Matern(1.0, WIDE, nu=1.5)),
    ],
)
@pytest.mark.filterwarnings("ignore:The optimal value found for dimension")  # the bias of the line
def test_a_sum_of_kernels_is_fitted_as_scikit_learn_does(ours, theirs):
    """A line and a wave of period 1.3, from the same start."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(60, 1, generator=generator, dtype=torch.float64)
    y = x + (2 * math.pi * x / 1.3).sin() + 0.2 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    kernel = Linear() + ours
    values, noise = fit_hyperparameters(kernel, x, y, kernel.start(x), scalar([0.5]), learn_noise=True)
    line = UNIT * kernels.DotProduct(1.0, (1e-3, 1e3))
    other = GaussianProcessRegressor(line + UNIT * theirs + WhiteKernel(0.25, (1e-5, 1e3)), alpha=1e-6).fit(x, y[:, 0])
    likelihood = float(log_marginal_likelihood(kernel(x, values), y, noise.square()))
    assert likelihood == pytest.approx(other.log_marginal_likelihood_value_, abs=0.01)
    assert float(noise) == pytest.approx(0.2, rel=0.2)
    assert isinstance(ours, Matern) or float(values[-1]) == pytest.approx(1.3, rel=0.02)
