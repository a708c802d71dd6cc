import numpy as np
import pytest
import scipy.stats
import torch
from torch import distributions as D

import fsvi
from likelihood_cases import N, Q, S, expected_curvature, made, outputs, targets


def test_soft_labels_are_an_average_over_hard_ones():
    f, y = outputs(), torch.rand(N, Q, dtype=torch.float64)
    losses = -y * D.Bernoulli(logits=f).log_prob(torch.ones(N, Q)) - (1 - y) * D.Bernoulli(logits=f).log_prob(
        torch.zeros(N, Q)
    )
    torch.testing.assert_close(fsvi.Bernoulli().nll(f, y), losses.sum(-1).mean())


def test_unknown_labels_do_not_count_and_have_no_gradient():
    f, y = outputs().requires_grad_(), torch.randint(2, (N, Q)).double()
    y[0, 1] = y[3] = torch.nan
    known = ~y.isnan()
    likelihood = fsvi.Bernoulli()
    nll = likelihood.nll(f, likelihood.check_targets(y, Q))
    expected = -D.Bernoulli(logits=f).log_prob(y.nan_to_num(0))[known].sum() / (N - 1)
    torch.testing.assert_close(nll, expected)
    (gradient,) = torch.autograd.grad(nll, f)
    assert torch.equal(gradient != 0, known) and likelihood.num_observed(y) == N - 1
    assert not likelihood.fisher_root(f.detach(), y)[3].any()


@pytest.mark.parametrize("draws", [(), (4,)], ids=["one", "draws"])
def test_one_logit_is_a_categorical_with_two(draws):
    """Loss and gradient with outputs f are those of Categorical with outputs (0, f)."""
    f = torch.randn(*draws, N, 1, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(N) % 2
    one = fsvi.Bernoulli().nll(f, labels.double()[:, None])
    two = fsvi.Categorical().nll(torch.cat([torch.zeros_like(f), f], dim=-1), labels)
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(*(torch.autograd.grad(loss, f)[0] for loss in (one, two)))


def test_the_root_of_the_fisher_information():
    f, likelihood = outputs(), fsvi.Bernoulli()
    root = likelihood.fisher_root(f)
    for given, logits in zip(root @ root.mT, f, strict=True):
        targets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * Q)
        chances = D.Independent(D.Bernoulli(logits=logits), 1).log_prob(targets).exp()
        torch.testing.assert_close(given, expected_curvature(likelihood, logits, targets, chances))


# Predictions


@pytest.fixture
def pair():
    """The same prediction by one logit and by two."""
    f = 3 * torch.randn(S, N, 1, dtype=torch.float64)
    return fsvi.likelihoods.BernoulliPredictive(f), fsvi.likelihoods.CategoricalPredictive(
        torch.cat([torch.zeros_like(f), f], dim=-1)
    )


def test_one_logit_predicts_as_two_do(pair):
    one, two = pair
    y = torch.arange(N) % 2
    torch.testing.assert_close(one.class_probabilities(), two.class_probabilities())
    torch.testing.assert_close(one.outcomes(), two.outcomes())
    torch.testing.assert_close(one.tempered(1.7).mean[:, 0], two.tempered(1.7).mean[:, 1])
    torch.testing.assert_close(one.mean[:, 0], two.mean[:, 1])
    torch.testing.assert_close(one.variance[:, 0], two.variance[:, 1])
    torch.testing.assert_close(one.log_prob(y), two.log_prob(y))
    for name in ("entropy", "expected_entropy", "mutual_information", "labels"):
        torch.testing.assert_close(getattr(one, name)(), getattr(two, name)())
    for name, values in one.columns().items():
        torch.testing.assert_close(values, two.columns()[name])


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
