import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from fsvi.likelihoods import GaussianPredictive
from fsvi.metrics import coverage, crps, evaluate_regression, log_likelihood, rmse, unstandardize

S, N, Q = 5, 6, 2


@pytest.fixture
def prediction():
    return GaussianPredictive(torch.randn(S, N, Q).double(), 0.1 + torch.rand(S, N, Q).double())


@pytest.fixture
def targets():
    return 1.5 * torch.randn(N, Q).double()


def test_rmse_is_of_the_mean_prediction(prediction, targets):
    expected = np.sqrt(np.mean((prediction.samples.numpy().mean(0) - targets.numpy()) ** 2))
    assert rmse(prediction, targets) == pytest.approx(expected)


def test_log_likelihood_is_of_the_mixture(prediction, targets):
    densities = scipy.stats.norm.pdf(targets, prediction.samples, prediction.noise_variance.sqrt())
    assert log_likelihood(prediction, targets) == pytest.approx(np.log(densities.prod(-1).mean(0)).mean())


def test_original_units_against_the_change_of_variables(prediction, targets):
    """The density of y = std·z + mean is that of z over std; errors and CRPS grow by std."""
    original = unstandardize(prediction, SimpleNamespace(mean=-3.0, std=4.0))
    y = 4 * targets - 3
    assert rmse(original, y) == pytest.approx(4 * rmse(prediction, targets))
    assert crps(original, y) == pytest.approx(4 * crps(prediction, targets))
    assert coverage(original, y, 0.5) == coverage(prediction, targets, 0.5)
    expected = log_likelihood(prediction, targets) - Q * math.log(4.0)
    assert log_likelihood(original, y) == pytest.approx(expected)


def test_a_scale_for_each_target(prediction):
    class Scale:
        mean, std = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])

    original = unstandardize(prediction, Scale())
    torch.testing.assert_close(original.mean, prediction.mean * Scale.std + Scale.mean)
    torch.testing.assert_close(original.variance, prediction.variance * Scale.std**2)


def test_coverage_against_quantiles_found_numerically(prediction, targets):
    for level in (0.3, 0.5, 0.9):
        inside = [_in_interval(prediction, targets, i, q, level) for i in range(N) for q in range(Q)]
        assert coverage(prediction, targets, level) == pytest.approx(np.mean(inside))


def _in_interval(p, y, i, q, level):
    means, stds = p.samples[:, i, q].numpy(), p.noise_variance[:, i, q].sqrt().numpy()
    low, high = (
        scipy.optimize.brentq(lambda t, s=s: scipy.stats.norm.cdf(t, means, stds).mean() - s, -50, 50)
        for s in ((1 - level) / 2, (1 + level) / 2)
    )
    return low <= y[i, q] <= high


def test_coverage_of_the_right_distribution_is_its_level():
    y = torch.randn(4000, 1).double()
    p = GaussianPredictive(torch.zeros(1, 4000, 1).double(), torch.ones(1).double())
    assert abs(coverage(p, y, 0.9) - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 4000)
    assert coverage(p, y, 0.0) == 0


def test_crps_against_its_integral(prediction, targets):
    expected = np.mean([_crps(prediction, targets, i, q) for i in range(N) for q in range(Q)])
    assert crps(prediction, targets) == pytest.approx(expected, rel=1e-6)


def _crps(p, y, i, q):
    means, stds = p.samples[:, i, q].numpy(), p.noise_variance[:, i, q].sqrt().numpy()
    target = float(y[i, q])

    def squared(t):
        return (scipy.stats.norm.cdf(t, means, stds).mean() - (t >= target)) ** 2

    return sum(scipy.integrate.quad(squared, *ends, limit=200)[0] for ends in ((-15, target), (target, 15)))


def test_crps_of_one_gaussian_in_closed_form():
    """σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π] (Gneiting and Raftery 2007)."""
    mean, std, y = 0.3, 1.7, 1.1
    z = (y - mean) / std
    expected = std * (z * (2 * scipy.stats.norm.cdf(z) - 1) + 2 * scipy.stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    p = GaussianPredictive(torch.tensor([[[mean]]]).double(), torch.tensor([std**2]).double())
    assert crps(p, [y]) == pytest.approx(expected)


def test_large_numbers_in_single_precision_lose_nothing():
    p = GaussianPredictive(torch.full((3, 1000, 1), 1000.0), torch.ones(1))
    assert rmse(p, torch.full((1000,), 1000.5)) == 0.5


def test_missing_targets_and_positions(prediction, targets):
    """Rows without targets do not count; of rows with some, these count."""
    y = targets.clone()
    y[0] = y[1, 1] = math.nan
    rest = prediction[2:]
    assert rmse(prediction, y) == pytest.approx(
        float(torch.cat([(prediction.mean[1, :1] - y[1, :1]), (rest.mean - y[2:]).flatten()]).square().mean().sqrt())
    )
    logs = torch.cat([prediction[1].column(0).log_prob(y[1:2, :1]), rest.log_prob(y[2:])])
    assert log_likelihood(prediction, y) == pytest.approx(float(logs.mean()))
    values = torch.cat([prediction[1].crps(targets[1:2])[:, 0], rest.crps(y[2:]).flatten()])
    assert crps(prediction, y) == pytest.approx(float(values.mean()))
    shaped = prediction.mapped(lambda values: values.unflatten(1, (2, 3)))
    assert evaluate_regression(shaped, y.unflatten(0, (2, 3))) == pytest.approx(evaluate_regression(prediction, y))
    assert coverage(prediction, torch.where(y.isnan(), y, prediction.mean), 0.9) == 1
