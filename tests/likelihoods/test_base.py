import pytest
import scipy.stats
import torch
from torch import distributions as D
from torch import nn

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import weighted
from likelihood_cases import N, Q, bound, outputs, targets

STDS = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("draws", [(), (4,)], ids=["one", "draws"])
@pytest.mark.parametrize(
    ("likelihood", "kind", "log_prob"),
    [
        (fsvi.Bernoulli(), "labels", lambda f, y: D.Bernoulli(logits=f).log_prob(y)),
        (fsvi.Gaussian(0.3, learn_noise=True), "gaussian", lambda f, y: D.Normal(f, 0.3).log_prob(y)),
        (fsvi.Gaussian(STDS.tolist()), "gaussian", lambda f, y: D.Normal(f, STDS).log_prob(y)),
        (fsvi.Poisson(), "counts", lambda f, y: scipy.stats.poisson.logpmf(y.numpy(), f.exp().numpy())),
        (fsvi.StudentT(0.7, 3.5), "student", lambda f, y: scipy.stats.t.logpdf(y.numpy(), 3.5, f.numpy(), 0.7)),
    ],
)
def test_the_nll_is_summed_over_targets_and_averaged_over_the_rest(draws, likelihood, kind, log_prob):
    f, y = outputs(*draws), targets(kind)
    expected = -torch.as_tensor(log_prob(f, y)).sum(-1).mean()
    torch.testing.assert_close(bound(likelihood).nll(f, y), expected, rtol=1e-6, atol=0)


def test_predictives_are_built_from_draws():
    f = torch.randn(5, N, Q)
    classes = fsvi.Categorical().predictive(f)
    torch.testing.assert_close(classes.samples, f.softmax(-1))
    real = bound(fsvi.Gaussian([0.1, 0.5, 2.0], learn_noise=True)).predictive(f.requires_grad_())
    assert torch.equal(real.samples, f) and not real.samples.requires_grad and not real.noise_variance.requires_grad
    torch.testing.assert_close(real.noise_variance[0, 0], torch.tensor([0.01, 0.25, 4.0]).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("likelihood", "y", "said"),
    [
        (fsvi.Categorical(), torch.zeros(N), "type torch.float32.*integers 0..2"),
        (fsvi.Categorical(), torch.zeros(N, dtype=torch.bool), "type torch.bool"),
        (fsvi.Categorical(), torch.tensor([0, 3]), r"0\.\.3"),
        (fsvi.Categorical(), torch.tensor([-1, 2]), "lie in -1..2"),
        (fsvi.Categorical(), torch.zeros(N, Q, dtype=torch.int64), r"\(5, 3\)"),
        (fsvi.Gaussian(), torch.zeros(N, 2), r"shape \(5, 2\).*\(n, 3\)"),
        (fsvi.Gaussian(), torch.zeros(N), r"shape \(5, 1\).*\(n, 3\)"),
        (fsvi.Gaussian(heteroscedastic=True), torch.zeros(N, 2), r"\(n, 1\)"),
    ],
)
def test_targets_that_do_not_fit_are_refused(likelihood, y, said):
    with pytest.raises(InvalidInputError, match=said):
        likelihood.check_targets(y, Q)


@pytest.mark.parametrize("likelihood", [fsvi.Gaussian(0.5), fsvi.StudentT(), fsvi.Poisson(), fsvi.Bernoulli()])
def test_missing_targets_are_left_out(likelihood):
    """A row without targets is as if it were not there; a row with some counts by those."""
    likelihood = bound(likelihood)
    f, y = torch.randn(4, N, Q, dtype=torch.float64), torch.ones(N, Q, dtype=torch.float64)
    y[2] = torch.nan
    keep = torch.arange(N) != 2
    checked = likelihood.check_targets(y, Q)
    torch.testing.assert_close(likelihood.nll(f, checked), likelihood.nll(f[:, keep], y[keep]))
    p = likelihood.predictive(f)
    assert p.log_prob(y)[2] == 0
    torch.testing.assert_close(p.log_prob(y)[keep], p[keep].log_prob(y[keep]))
    y[0, 1:] = torch.nan
    torch.testing.assert_close(p.log_prob(y)[0], p.column(0).log_prob(y[:, 0])[0])


@pytest.mark.parametrize(
    "likelihood",
    [
        fsvi.Gaussian(0.5),
        fsvi.Gaussian(heteroscedastic=True),
        fsvi.StudentT(),
        fsvi.Poisson(),
        fsvi.Bernoulli(),
        fsvi.Categorical(),
    ],
)
def test_a_weight_of_two_is_like_having_the_example_twice(likelihood):
    """And one of zero like not having it."""
    is_doubled = getattr(likelihood, "heteroscedastic", False)
    likelihood = bound(likelihood, 2 * Q if is_doubled else Q)
    f = torch.randn(4, N, 2 * Q if is_doubled else Q, dtype=torch.float64)
    y = torch.zeros(N).long() if isinstance(likelihood, fsvi.Categorical) else torch.ones(N, Q, dtype=torch.float64)
    weights = torch.tensor([1, 2, 0, 1, 2], dtype=torch.float64)
    given = torch.arange(N).repeat_interleave(weights.long())
    with weighted(nn.ModuleList([likelihood]), weights / weights.mean()):
        ours = likelihood.nll(f, y)
    torch.testing.assert_close(ours, likelihood.nll(f[:, given], y[given]))
    assert likelihood.weights is None
