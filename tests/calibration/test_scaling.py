import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch

from calibration_cases import class_predictions, real_predictions
from fsvi.calibration import TemperatureScaling, VarianceScaling, VectorScaling
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive, GaussianPredictive
from fsvi.methods.duq import KernelPredictive
from fsvi.metrics import ece, nll


def numpy_nll(p, y, scale, bias):
    """Mean −log 1/S Σₛ softmax(scale·log pₛ + bias)[y], by NumPy and SciPy alone."""
    logits = p.log_probs.numpy() * scale + bias
    chosen = scipy.special.log_softmax(logits, -1)[:, np.arange(len(y)), y.numpy()]
    return -(scipy.special.logsumexp(chosen, 0) - np.log(len(chosen))).mean()


# Temperature


@pytest.mark.parametrize("confidence", [0.4, 1.0, 3.0])
def test_temperature_is_the_direct_minimum(confidence):
    p, y = class_predictions(600, confidence=confidence)
    found = TemperatureScaling().fit(p, y).temperature
    direct = scipy.optimize.minimize_scalar(lambda t: numpy_nll(p, y, np.exp(-t), 0), bracket=(-1, 1), tol=1e-10)
    assert found == pytest.approx(np.exp(direct.x), rel=1e-5)


def test_one_draw_recovers_the_temperature_that_the_labels_follow():
    """Without draws that disagree, T is the factor by which logits were too large, up to sampling error."""
    p, y = class_predictions(20_000, draws=1, confidence=1.0)
    overconfident = CategoricalPredictive(p.log_probs * 2.5)
    scaling = TemperatureScaling().fit(p, y)
    assert TemperatureScaling().fit(overconfident, y).temperature == pytest.approx(2.5 * scaling.temperature, rel=1e-5)


def test_every_draw_is_scaled_not_the_average():
    p, y = class_predictions(50)
    scaled = TemperatureScaling(1.7)(p)
    expected = scipy.special.softmax(p.log_probs.numpy() / 1.7, -1)
    np.testing.assert_allclose(scaled.samples, expected, rtol=1e-12)
    np.testing.assert_allclose(scaled.mean, expected.mean(0), rtol=1e-12)
    assert torch.equal(scaled.log_prob(y), CategoricalPredictive(p.log_probs / 1.7).log_prob(y))


def test_draws_that_disagree_stay_uncertain_at_any_temperature():
    """Half of the draws are sure of one class, half of the other: scaling must not decide between them."""
    p = CategoricalPredictive(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]))
    for temperature in (0.05, 1.0, 20.0):
        assert TemperatureScaling(temperature)(p).mean.tolist() == [[0.5, 0.5]]
    assert TemperatureScaling(0.05)(p).mutual_information() > 0.69


def test_temperature_improves_calibration_on_other_rows():
    p, y = class_predictions(4000, confidence=3.0)
    fresh, labels = class_predictions(4000, seed=1, confidence=3.0)
    scaled = TemperatureScaling().fit(p, y)(fresh)
    assert nll(scaled, labels) < 0.9 * nll(fresh, labels)
    assert ece(scaled, labels) < 0.5 * ece(fresh, labels)


def test_rows_without_errors_stop_at_the_limit():
    p = CategoricalPredictive(torch.tensor([2.0, 0.0]).expand(1, 30, 2))
    assert 1 / 20 <= TemperatureScaling().fit(p, torch.zeros(30).long()).temperature < 0.1


def test_what_else_a_prediction_holds_stays():
    """DUQ ranks by its kernels, which a temperature does not change."""
    p = KernelPredictive(-torch.rand(1, 20, 3))
    scaled = TemperatureScaling(2.0)(p)
    assert isinstance(scaled, KernelPredictive) and torch.equal(scaled.score, p.score)


# Vectors


def test_vectors_are_a_direct_minimum():
    p, y = class_predictions(300, confidence=2.0)
    scaling = VectorScaling().fit(p, y)
    best = numpy_nll(p, y, scaling.scale.numpy(), scaling.bias.numpy())
    direct = scipy.optimize.minimize(
        lambda v: numpy_nll(p, y, v[:4], np.append(v[4:], 0.0)),
        np.append(np.ones(4), np.zeros(3)),
        method="BFGS",
        options={"gtol": 1e-7},
    )
    assert best == pytest.approx(direct.fun, abs=1e-7)
    np.testing.assert_allclose(scaling.scale, direct.x[:4], atol=2e-3)
    shift = np.append(direct.x[4:], 0.0)
    np.testing.assert_allclose(scaling.bias, shift - shift.mean(), atol=2e-3)


def test_vectors_correct_a_class_that_is_predicted_too_often():
    shift = torch.tensor([2.0, 0.0, 0.0, 0.0])
    p, y = class_predictions(3000, draws=1, confidence=1.0)
    fresh, labels = class_predictions(3000, seed=1, draws=1, confidence=1.0)
    p, fresh = (CategoricalPredictive(each.log_probs + shift) for each in (p, fresh))
    vectors, temperature = VectorScaling().fit(p, y), TemperatureScaling().fit(p, y)
    assert nll(vectors(fresh), labels) < nll(temperature(fresh), labels) - 0.05
    expected = numpy_nll(fresh, labels, vectors.scale.numpy(), vectors.bias.numpy())
    assert nll(vectors(fresh), labels) == pytest.approx(expected, rel=1e-9)


def test_vectors_need_every_class():
    p, y = class_predictions(50)
    with pytest.raises(InvalidInputError, match="class 3 does not occur"):
        VectorScaling().fit(p, y.clamp_max(2))


# Variance


def test_one_draw_has_the_variance_factor_in_closed_form():
    """k² = mean of (y − m)²/σ², target by target."""
    p, y = real_predictions(300, targets=2, draws=1)
    expected = ((y - p.mean).square() / p.variance).mean(0).sqrt()
    for noise_only in (False, True):
        scaling = VarianceScaling(noise_only=noise_only).fit(p, y)
        np.testing.assert_allclose(scaling.factor, expected, rtol=1e-6)


@pytest.mark.parametrize("noise_only", [False, True])
def test_variance_factor_is_the_direct_minimum(noise_only):
    p, y = real_predictions(300)

    def loss(log_factor):
        k = np.exp(log_factor)
        mean = p.samples.numpy().mean(0)
        draws = p.samples.numpy() if noise_only else mean + k * (p.samples.numpy() - mean)
        logs = scipy.stats.norm.logpdf(y.numpy(), draws, k * p.noise_variance.numpy() ** 0.5)[..., 0]
        return -(scipy.special.logsumexp(logs, 0) - np.log(len(logs))).mean()

    direct = scipy.optimize.minimize_scalar(loss, bracket=(-1, 1), tol=1e-10)
    found = VarianceScaling(noise_only=noise_only).fit(p, y).factor
    assert found.tolist() == pytest.approx([np.exp(direct.x)], rel=1e-5)


def test_the_mean_stays_and_the_variance_grows_by_the_square():
    p, _ = real_predictions(20, targets=2)
    factor = torch.tensor([2.0, 3.0], dtype=torch.float64)
    scaled = VarianceScaling(factor)(p)
    torch.testing.assert_close(scaled.mean, p.mean)
    torch.testing.assert_close(scaled.variance, factor.square() * p.variance)
    noise = VarianceScaling(factor, noise_only=True)(p)
    assert torch.equal(noise.samples, p.samples)
    torch.testing.assert_close(noise.noise_variance, factor.square() * p.noise_variance)


def test_the_factor_does_not_depend_on_units():
    p, y = real_predictions(200)
    in_grams = GaussianPredictive(1000 * p.samples + 5, 1e6 * p.noise_variance)
    first, second = VarianceScaling().fit(p, y), VarianceScaling().fit(in_grams, 1000 * y + 5)
    torch.testing.assert_close(first.factor, second.factor, rtol=1e-6, atol=0)


# What is refused


@pytest.mark.parametrize("scaling", [TemperatureScaling(), VectorScaling()])
def test_bad_classes(scaling):
    p, y = class_predictions(30)
    with pytest.raises(InvalidInputError, match="labels"):
        scaling.fit(p, y + 1)
    with pytest.raises(InvalidInputError, match="shape"):
        scaling.fit(p, y[1:])
    with pytest.raises(InvalidInputError, match="probability 0"):
        scaling.fit(CategoricalPredictive(torch.tensor([0.0, -torch.inf]).expand(1, 30, 2)), torch.ones(30).long())
    with pytest.raises(InvalidInputError, match="not fitted"):
        scaling(p)
    with pytest.raises(InvalidInputError, match="prediction of classes"):
        scaling.fit(real_predictions(30)[0], y)


def test_bad_targets():
    p, y = real_predictions(30)
    with pytest.raises(InvalidInputError, match="infinite"):
        VarianceScaling().fit(p, y / 0)
    with pytest.raises(InvalidInputError, match="shape"):
        VarianceScaling().fit(p, y[1:])
    with pytest.raises(InvalidInputError, match="noise"):
        VarianceScaling().fit(GaussianPredictive(p.samples, 0 * p.noise_variance), torch.zeros(30))
    with pytest.raises(InvalidInputError, match="not fitted"):
        VarianceScaling()(p)
    with pytest.raises(InvalidInputError, match="real targets"):
        VarianceScaling().fit(class_predictions(30)[0], y)
