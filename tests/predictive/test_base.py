import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from fsvi.errors import InvalidInputError
from fsvi.predictive import CategoricalPredictive, GaussianPredictive, select

S, N, Q = 7, 5, 3


@pytest.fixture
def logits():
    return 2 * torch.randn(S, N, Q, dtype=torch.float64)


@pytest.fixture
def classes(logits):
    return CategoricalPredictive(logits)


@pytest.fixture(params=["shared", "by_input"])
def real(request):
    samples = torch.randn(S, N, Q, dtype=torch.float64)
    shape = (Q,) if request.param == "shared" else samples.shape
    return GaussianPredictive(samples, torch.rand(shape, dtype=torch.float64) + 0.1)


def test_class_probabilities_are_averaged_not_logits(classes, logits):
    expected = scipy.special.softmax(logits.numpy(), axis=-1).mean(0)
    np.testing.assert_allclose(classes.mean, expected, rtol=1e-12)
    np.testing.assert_allclose(classes.mean.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(classes.variance, scipy.special.softmax(logits.numpy(), axis=-1).var(0), rtol=1e-10)
    assert torch.equal(classes.labels(), classes.mean.argmax(-1)) and len(classes) == N


def test_selected_rows_are_those_predictions(classes, real):
    rows = torch.tensor([3, 0])
    assert torch.equal(select(classes, rows).mean, classes.mean[rows]) and len(select(classes, rows)) == 2
    chosen = select(real, rows)
    assert torch.equal(chosen.samples, real.samples[:, rows]) and torch.equal(chosen.variance, real.variance[rows])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_left_before_probabilities(dtype, logits):
    """Else the probabilities of many classes do not add up to one."""
    many = 2 * torch.randn(S, 50, 200, dtype=dtype)
    assert (many.softmax(-1).mean(0).float().sum(-1) - 1).abs().max() > 1e-5
    torch.testing.assert_close(CategoricalPredictive(many).mean.sum(-1), torch.ones(50))
    p = GaussianPredictive(logits.to(dtype), torch.full((Q,), 1e-3, dtype=dtype))
    assert p.mean.dtype == p.variance.dtype == p.log_prob(torch.zeros(N, Q)).dtype == torch.float32


def test_entropies(classes):
    """H[E p], E H[p] and their difference, in nats."""
    total = scipy.stats.entropy(classes.mean.numpy(), axis=-1)
    expected = scipy.stats.entropy(classes.samples.numpy(), axis=-1).mean(0)
    np.testing.assert_allclose(classes.entropy(), total, rtol=1e-12)
    np.testing.assert_allclose(classes.expected_entropy(), expected, rtol=1e-12)
    np.testing.assert_allclose(classes.mutual_information(), total - expected, rtol=1e-10)
    assert torch.equal(classes.score, classes.entropy())
    assert (classes.mutual_information() > 0.01).all()


def test_entropy_has_its_limits():
    flat = CategoricalPredictive(torch.zeros(S, 1, Q))
    torch.testing.assert_close(flat.entropy(), torch.tensor([math.log(Q)]))
    assert flat.mutual_information() == 0
    agreeing = CategoricalPredictive(torch.randn(1, 50, Q).expand(S, 50, Q))
    assert (agreeing.mutual_information() == 0).all()
    torn = CategoricalPredictive(torch.tensor([[[1e4, 0.0]], [[0.0, 1e4]]]))
    torch.testing.assert_close(torn.mutual_information(), torch.tensor([math.log(2)]))


@pytest.mark.parametrize("labels", [torch.arange(N) % Q, (torch.arange(N) % Q)[:, None]], ids=["vector", "column"])
def test_log_prob_of_labels_is_the_log_of_the_mean_not_the_mean_of_logs(classes, labels):
    probabilities = classes.samples[:, torch.arange(N), labels.reshape(-1)]
    torch.testing.assert_close(classes.log_prob(labels), probabilities.mean(0).log())
    assert (classes.log_prob(labels) > probabilities.log().mean(0) + 1e-3).all()


def test_log_prob_of_real_targets_is_the_log_of_the_mean_density(real):
    y = torch.randn(N, Q, dtype=torch.float64)
    logs = scipy.stats.norm.logpdf(y.numpy(), real.samples.numpy(), real.noise_variance.sqrt().numpy()).sum(-1)
    np.testing.assert_allclose(real.log_prob(y), np.log(np.exp(logs).mean(0)), rtol=1e-10)
    assert (real.log_prob(y).numpy() > logs.mean(0) + 1e-3).all()


def test_variance_is_the_law_of_total_variance(real):
    """Against the moments of many draws of y itself: within five standard errors."""
    draws = 40_000
    y = real.samples + real.noise_variance.sqrt() * torch.randn(draws, S, N, Q, dtype=torch.float64)
    y = y.reshape(-1, N, Q)
    centred = (y - real.mean).square()
    error = centred.std(0) / math.sqrt(len(y))
    assert ((centred.mean(0) - real.variance) / error).abs().max() < 5
    torch.testing.assert_close(real.function_variance, real.samples.var(0, correction=0))
    torch.testing.assert_close(real.variance, real.function_variance + real.noise_variance.mean(0))
    torch.testing.assert_close(real.score, real.variance.mean(-1).sqrt())


def test_targets_of_one_output_may_be_a_vector():
    p = GaussianPredictive(torch.randn(S, N, 1), torch.ones(1))
    y = torch.randn(N)
    assert torch.equal(p.log_prob(y), p.log_prob(y[:, None])) and p.log_prob(y).shape == (N,)


@pytest.mark.parametrize("scale", [1e3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_give_no_nan(scale, dtype):
    logits = scale * torch.tensor([[[1.0, -1.0], [0.0, 0.0]], [[1.0, -1.0], [-1.0, 1.0]]], dtype=dtype)
    p = CategoricalPredictive(logits)
    values = [
        p.mean,
        p.variance,
        p.entropy(),
        p.expected_entropy(),
        p.mutual_information(),
        p.log_prob(torch.tensor([1, 0])),
    ]
    assert all(value.isfinite().all() for value in values)
    torch.testing.assert_close(p.entropy()[0], torch.tensor(0.0, dtype=dtype))
    assert p.log_prob(torch.tensor([1, 0]))[0] == -2 * scale
    assert (p.mutual_information() >= 0).all()


def test_distant_targets_have_a_finite_log_density():
    p = GaussianPredictive(torch.zeros(S, 1, 1), torch.full((1,), 1e-6))
    assert p.log_prob(torch.full((1, 1), 1e3)).isfinite().all()


@pytest.mark.parametrize(
    "p", [CategoricalPredictive(torch.zeros(S, N, Q)), GaussianPredictive(torch.zeros(S, N, Q), torch.ones(Q))]
)
def test_another_number_of_targets_is_refused(p):
    with pytest.raises(InvalidInputError, match=r"\(4,\)"):
        p.log_prob(torch.zeros(N - 1, dtype=torch.int64))


def test_labels_may_be_an_array_and_are_checked():
    p = CategoricalPredictive(torch.zeros(S, N, Q))
    torch.testing.assert_close(p.log_prob([0] * N), p.log_prob(torch.zeros(N, dtype=torch.int32)))
    with pytest.raises(InvalidInputError, match=rf"{Q}\.\.{Q}"):
        p.log_prob([Q] * N)


def test_every_predictive_names_its_score(classes, real):
    assert (classes.score_name, real.score_name) == ("entropy", "standard deviation")
