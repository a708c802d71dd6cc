import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch

from calibration_cases import class_predictions, real_predictions
from fsvi.calibration import TemperatureScaling, VarianceScaling
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive, MixturePredictive


def numpy_nll(p, y, scale):
    """Mean −log 1/S Σₛ softmax(scale·log pₛ)[y], by NumPy and SciPy alone."""
    chosen = scipy.special.log_softmax(p.log_probs.numpy() * scale, -1)[:, np.arange(len(y)), y.numpy()]
    return -(scipy.special.logsumexp(chosen, 0) - np.log(len(chosen))).mean()


# Temperature


@pytest.mark.parametrize("confidence", [0.4, 1.0, 3.0])
def test_temperature_is_the_direct_minimum(confidence):
    p, y = class_predictions(600, confidence=confidence)
    found = TemperatureScaling().fit(p, y).temperature
    direct = scipy.optimize.minimize_scalar(lambda t: numpy_nll(p, y, np.exp(-t)), bracket=(-1, 1), tol=1e-10)
    assert found == pytest.approx(np.exp(direct.x), rel=1e-5)


def test_every_draw_is_scaled_not_the_average():
    p, y = class_predictions(50)
    scaled = TemperatureScaling(1.7)(p)
    expected = scipy.special.softmax(p.log_probs.numpy() / 1.7, -1)
    np.testing.assert_allclose(scaled.samples, expected, rtol=1e-12)
    np.testing.assert_allclose(scaled.mean, expected.mean(0), rtol=1e-12)
    assert torch.equal(scaled.log_prob(y), CategoricalPredictive(p.log_probs / 1.7).log_prob(y))


# Variance


def test_one_draw_has_the_variance_factor_in_closed_form():
    """k² = mean of (y − m)²/σ², target by target."""
    p, y = real_predictions(300, targets=2, draws=1)
    expected = ((y - p.mean).square() / p.variance).mean(0).sqrt()
    np.testing.assert_allclose(VarianceScaling().fit(p, y).factor, expected, rtol=1e-6)


def test_variance_factor_is_the_direct_minimum():
    p, y = real_predictions(300)

    def loss(log_factor):
        k = np.exp(log_factor)
        mean = p.samples.numpy().mean(0)
        draws = mean + k * (p.samples.numpy() - mean)
        logs = scipy.stats.norm.logpdf(y.numpy(), draws, k * p.noise_variance.numpy() ** 0.5)[..., 0]
        return -(scipy.special.logsumexp(logs, 0) - np.log(len(logs))).mean()

    direct = scipy.optimize.minimize_scalar(loss, bracket=(-1, 1), tol=1e-10)
    found = VarianceScaling().fit(p, y).factor
    assert found.tolist() == pytest.approx([np.exp(direct.x)], rel=1e-5)


def test_the_mean_stays_and_the_variance_grows_by_the_square():
    p, _ = real_predictions(20, targets=2)
    factor = torch.tensor([2.0, 3.0], dtype=torch.float64)
    scaled = VarianceScaling(factor)(p)
    torch.testing.assert_close(scaled.mean, p.mean)
    torch.testing.assert_close(scaled.variance, factor.square() * p.variance)
    torch.testing.assert_close(scaled.noise_variance, factor.square() * p.noise_variance)


def test_logits_of_counts_are_not_those_of_classes():
    counts = MixturePredictive(
        torch.distributions.NegativeBinomial, total_count=torch.ones(1), logits=torch.zeros(3, 4, 1)
    )
    for p in (counts, class_predictions(4)[0].summary()):
        with pytest.raises(InvalidInputError, match="no class probabilities"):
            TemperatureScaling(2.0)(p)
