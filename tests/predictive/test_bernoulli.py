import numpy as np
import pytest
import scipy.stats
import torch

import fsvi
from fsvi.errors import InvalidInputError
from predictive_cases import N, Q, S, made, targets


@pytest.fixture
def pair():
    """The same prediction by one logit and by two."""
    f = 3 * torch.randn(S, N, 1, dtype=torch.float64)
    return fsvi.BernoulliPredictive(f), fsvi.CategoricalPredictive(torch.cat([torch.zeros_like(f), f], dim=-1))


def test_one_logit_is_a_categorical_with_two(pair):
    one, two = pair
    y = torch.arange(N) % 2
    torch.testing.assert_close(one.class_probabilities(), two.class_probabilities())
    torch.testing.assert_close(one.class_log_probs(), two.class_log_probs())
    torch.testing.assert_close(one.mean[:, 0], two.mean[:, 1])
    torch.testing.assert_close(one.variance[:, 0], two.variance[:, 1])
    torch.testing.assert_close(one.log_prob(y), two.log_prob(y))
    for name in ("entropy", "expected_entropy", "mutual_information", "labels"):
        torch.testing.assert_close(getattr(one, name)(), getattr(two, name)())
    torch.testing.assert_close(one.constant_nll(y.double()[:, None]), two.constant_nll(y))
    for name, values in one.columns().items():
        torch.testing.assert_close(values, two.columns()[name])


def test_metrics_calibration_and_referral_treat_both_the_same(pair):
    one, two = (fsvi.concatenate([p] * 40) for p in pair)
    y = one.sample(1, seed=1)[0, :, 0].long()
    for p in (one, two):
        p.evaluated = fsvi.metrics.evaluate_classification(p, y)
        p.uncertain = fsvi.metrics.uncertainty(p, "mutual_information")
        p.scaled = fsvi.calibration.TemperatureScaling().fit(p, y)(p).class_probabilities()
        p.kept = fsvi.Referral(p, y, target_accuracy=0.6, confidence=0.5).decide(p)
    assert one.evaluated == pytest.approx(two.evaluated)
    torch.testing.assert_close(one.uncertain, two.uncertain)
    torch.testing.assert_close(one.scaled, two.scaled)
    assert torch.equal(one.kept, two.kept)


def test_several_labels_against_scipy():
    p, y = made("labels"), targets("labels")
    logs = scipy.stats.bernoulli.logpmf(y.numpy(), p.samples.numpy()).sum(-1)
    np.testing.assert_allclose(p.log_prob(y), np.log(np.exp(logs).mean(0)), rtol=1e-10)
    total = scipy.stats.bernoulli.entropy(p.mean.numpy()).sum(-1)
    expected = scipy.stats.bernoulli.entropy(p.samples.numpy()).sum(-1).mean(0)
    np.testing.assert_allclose(p.entropy(), total, rtol=1e-10)
    np.testing.assert_allclose(p.expected_entropy(), expected, rtol=1e-10)
    np.testing.assert_allclose(p.mutual_information(), total - expected, rtol=1e-8)
    assert p.labels().shape == (N, Q) and torch.equal(p.labels(), (p.mean > 0.5).long())


def test_draws_that_agree_have_no_mutual_information():
    p = fsvi.BernoulliPredictive(torch.randn(1, 50, Q).expand(S, 50, Q))
    assert (p.mutual_information() == 0).all()


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_extreme_logits_give_no_nan(scale):
    p = fsvi.BernoulliPredictive(scale * torch.tensor([[[1.0], [0.0]], [[1.0], [-1.0]]]))
    values = [p.mean, p.variance, p.entropy(), p.expected_entropy(), p.mutual_information(), p.log_prob([0, 1])]
    assert all(value.isfinite().all() for value in values)


def test_one_class_of_several_labels_is_refused():
    p = made("labels")
    with pytest.raises(InvalidInputError, match="column"):
        fsvi.metrics.accuracy(p, torch.zeros(N).long())
    assert 0 <= fsvi.metrics.accuracy(p.column(1), torch.zeros(N).long()) <= 1
    with pytest.raises(InvalidInputError, match="0 or 1"):
        p.log_prob(torch.full((N, Q), 0.5))
