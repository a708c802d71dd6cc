import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.functions import LINEARIZERS, gaussian_kl
from fsvi.functions.gp import fit_hyperparameters, log_marginal_likelihood, median_distance, rbf_kernel
from fsvi.functions.priors import GaussianProcess
from fsvi.networks import split_head

JVP = LINEARIZERS["jvp"]


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def draw(num, lengthscale, variance, noise, targets=1, seed=0):
    """Inputs and targets drawn from the process itself."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(num, 1, generator=generator, dtype=torch.float64)
    covariance = rbf_kernel(x, scalar(lengthscale), scalar(variance)) + noise**2 * torch.eye(num)
    return x, torch.linalg.cholesky(covariance) @ torch.randn(num, targets, generator=generator, dtype=torch.float64)


def test_the_kernel_by_hand():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    off = 2 * math.exp(-(5**2) / (2 * 2.5**2))
    expected = torch.tensor([[2.0, off], [off, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(rbf_kernel(x, scalar(2.5), scalar(2.0)), expected)
    torch.testing.assert_close(rbf_kernel(x.view(2, 1, 2, 1), scalar(2.5), scalar(2.0)), expected)


def test_the_median_distance_leaves_repeated_inputs_out():
    assert float(median_distance(torch.tensor([[0.0], [1.0], [3.0]]))) == 2.0
    assert float(median_distance(torch.tensor([[0.0], [0.0], [0.0], [5.0]]))) == 5.0
    assert float(median_distance(torch.zeros(4, 2))) == 1.0


def test_the_marginal_likelihood_is_a_gaussian_s():
    x, y = draw(7, 1.0, 1.0, 0.3, targets=2)
    kernel = rbf_kernel(x, scalar(0.8), scalar(1.5))
    noise = torch.tensor([0.1, 0.4], dtype=torch.float64)
    expected = sum(
        MultivariateNormal(torch.zeros(7, dtype=torch.float64), kernel + v * torch.eye(7)).log_prob(y[:, q])
        for q, v in enumerate(noise)
    )
    torch.testing.assert_close(log_marginal_likelihood(kernel, y, noise), expected)


def test_fitted_hyperparameters_are_at_least_as_likely_as_the_true_ones_and_close_to_them():
    """Five functions at 40 points each have some 30 degrees of freedom for the variance, known to exp(±0.25)."""
    x, y = draw(40, 0.7, 2.0, 0.2, targets=5)
    start = (scalar(2.0), scalar(1.0), torch.ones(5, dtype=torch.float64))
    lengthscale, variance, noise = fit_hyperparameters(x, y, start, learn_noise=True)

    def likelihood(lengthscale, variance, noise):
        return float(log_marginal_likelihood(rbf_kernel(x, lengthscale, variance), y, noise.square()))

    assert likelihood(lengthscale, variance, noise) > likelihood(scalar(0.7), scalar(2.0), 0.2 * torch.ones(5))
    assert abs(math.log(float(lengthscale) / 0.7)) < 0.2
    assert abs(math.log(float(variance) / 2.0)) < 0.5
    assert noise.shape == (5,) and abs(float(noise.log().mean()) - math.log(0.2)) < 0.2


def test_a_known_noise_stays():
    x, y = draw(20, 0.7, 1.0, 0.2)
    given = scalar([0.25])
    lengthscale, _, noise = fit_hyperparameters(x, y, (scalar(1.0), scalar(1.0), given), learn_noise=False)
    torch.testing.assert_close(noise, given)
    assert float(lengthscale) != 1.0


def test_repeated_inputs_and_targets_without_noise_can_be_fitted():
    x = torch.zeros(8, 1)
    y = torch.ones(8, 1)
    values = fit_hyperparameters(x, y, (scalar(1.0), scalar(1.0), scalar([1.0])), learn_noise=True)
    assert all(bool(value.isfinite().all()) for value in values)


# The prior -----------------------------------------------------------------------------------------------------------


def test_the_prior_at_points_is_the_kernel_for_every_output(make):
    net, x = make("mlp", 6)
    split = split_head(net, x)
    prior = GaussianProcess(lengthscale=1.3, variance=0.6)
    kernel = rbf_kernel(x, scalar(1.3), scalar(0.6))
    p = prior.gaussian(split, x, JVP, joint=False)
    assert p.mean.shape == (6, 2) and not p.mean.any()
    torch.testing.assert_close(p.covariance(), kernel[None])
    joint = prior.gaussian(split, x, JVP, joint=True)
    assert joint.mean.shape == (12, 1)
    torch.testing.assert_close(joint.covariance()[0], torch.kron(kernel, torch.eye(2, dtype=torch.float64)))


def test_a_singular_kernel_is_no_obstacle(make):
    net, x = make("mlp", 3)
    p = GaussianProcess(lengthscale=50.0).gaussian(split_head(net, x), torch.cat([x, x, x]), JVP, joint=False)
    assert bool((p.weight >= 0).all())
    assert float(gaussian_kl(p, p, 1e-4)) == pytest.approx(0, abs=1e-6)


def test_the_lengthscale_is_the_median_distance_unless_it_is_given():
    x = torch.tensor([[0.0], [1.0], [3.0]])
    found, given = GaussianProcess(variance=2.0), GaussianProcess(lengthscale=0.5)
    for prior in (found, given):
        prior.prepare(x)
    assert found.hyperparameters.tolist() == [2.0, 2.0] and given.hyperparameters.tolist() == [0.5, 1.0]


def test_fitting_moves_the_hyperparameters():
    x, y = draw(30, 0.5, 1.0, 0.1)
    prior = GaussianProcess(lengthscale=2.0)
    noise = prior.fit(x, y, scalar([0.5]), learn_noise=True)
    expected = fit_hyperparameters(x, y, (scalar(2.0), scalar(1.0), scalar([0.5])), learn_noise=True)
    torch.testing.assert_close([*prior.hyperparameters, noise], expected)
    assert abs(float(prior.hyperparameters[0]) - 0.5) < 0.3


@pytest.mark.parametrize("settings", [{"lengthscale": 0.0}, {"lengthscale": -1.0}, {"variance": 0.0}])
def test_bad_hyperparameters_are_refused(settings):
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        GaussianProcess(**settings)


def test_fsvi_takes_the_prior_and_a_file_keeps_what_it_found(make, tmp_path):
    net, x = make("mlp", 10)
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Batch(), prior=GaussianProcess(), num_context=5)
    fsvi.fit(method, (x, torch.arange(10) % 2), epochs=2)
    method.save(tmp_path / "gp.fsvi")
    loaded = fsvi.load(tmp_path / "gp.fsvi", make("mlp")[0])
    assert torch.equal(loaded.prior.hyperparameters, method.prior.hyperparameters)
    assert float(loaded.prior.hyperparameters[0]) == pytest.approx(float(median_distance(x)))
