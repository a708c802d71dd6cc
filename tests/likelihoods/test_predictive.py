import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive, GaussianPredictive, mixture
from likelihood_cases import KINDS, NUMERIC, N, Q, S, made, targets


@pytest.fixture
def logits():
    return 2 * torch.randn(S, N, Q, dtype=torch.float64)


@pytest.fixture
def classes(logits):
    return CategoricalPredictive(logits)


@pytest.fixture
def real():
    samples = torch.randn(S, N, Q, dtype=torch.float64)
    return GaussianPredictive(samples, torch.rand(samples.shape, dtype=torch.float64) + 0.1)


def test_class_probabilities_are_averaged_not_logits(classes, logits):
    expected = scipy.special.softmax(logits.numpy(), axis=-1).mean(0)
    np.testing.assert_allclose(classes.mean, expected, rtol=1e-12)
    np.testing.assert_allclose(classes.mean.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(classes.variance, scipy.special.softmax(logits.numpy(), axis=-1).var(0), rtol=1e-10)
    assert torch.equal(classes.labels(), classes.mean.argmax(-1)) and len(classes) == N


def test_draws_too_far_apart_for_a_variance_are_refused():
    one, other = (GaussianPredictive(torch.full((1, 2, 1), mean), torch.ones(1)) for mean in (1e20, -1e20))
    with pytest.raises(InvalidInputError, match="too large for a prediction at 2 of 2 inputs"):
        mixture([one, other])


def test_entropies(classes):
    """H[E p], E H[p] and their difference, in nats."""
    total = scipy.stats.entropy(classes.mean.numpy(), axis=-1)
    expected = scipy.stats.entropy(classes.samples.numpy(), axis=-1).mean(0)
    np.testing.assert_allclose(classes.entropy(), total, rtol=1e-12)
    np.testing.assert_allclose(classes.expected_entropy(), expected, rtol=1e-12)
    np.testing.assert_allclose(classes.mutual_information(), total - expected, rtol=1e-10)
    assert torch.equal(classes.score, classes.entropy())
    assert (classes.mutual_information() > 0.01).all()


@pytest.mark.parametrize("labels", [torch.arange(N) % Q, (torch.arange(N) % Q)[:, None]], ids=["vector", "column"])
def test_log_prob_of_labels_is_the_log_of_the_mean_not_the_mean_of_logs(classes, labels):
    probabilities = classes.samples[:, torch.arange(N), labels.reshape(-1)]
    torch.testing.assert_close(classes.log_prob(labels), probabilities.mean(0).log())
    assert (classes.log_prob(labels) > probabilities.log().mean(0) + 1e-3).all()


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


# Every kind of prediction has the same interface ----------------------------------------------------------------------

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_samples_follow_the_distribution_and_their_seed(kind):
    p = made(kind)
    state = torch.get_rng_state()
    y = p.sample(20_000, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(p.sample(50, seed=3), p.sample(50, seed=3))
    assert not torch.equal(p.sample(50, seed=3), p.sample(50, seed=4))
    values = torch.nn.functional.one_hot(y, Q).double() if kind == "classes" else y
    assert values.shape == (20_000, N, Q)
    error = values.std(0) / math.sqrt(len(values))
    assert ((values.mean(0) - p.mean) / error).abs().max() < 5
    assert len(p.log_prob(y[0])) == N


def test_each_sample_comes_from_one_function_for_all_inputs():
    """Draws that are far apart: all inputs of a sample are on the same side."""
    signs = torch.tensor([-1.0, 1.0])[:, None, None].expand(2, N, 1)
    high = GaussianPredictive(100 * signs, torch.ones(1)).sample(40).reshape(40, N) > 0
    assert bool((high.all(1) | ~high.any(1)).all()) and bool(high.any()) and not bool(high.all())


@pytest.mark.parametrize("kind", NUMERIC)
def test_quantiles_invert_the_distribution_function(kind):
    p = made(kind)
    for q in (0.02, 0.5, 0.9):
        value = p.quantile(q)
        assert value.shape == (N, Q)
        assert bool((p.cdf(value) >= q - 1e-9).all()) and bool((p.cdf(value, below=True) <= q + 1e-9).all())
    torch.testing.assert_close(p.quantile([0.1, 0.9]), torch.stack([p.quantile(0.1), p.quantile(0.9)]))
    if kind == "gaussian":
        p = p.draws(slice(0, 1))  # an interval is that of the Gaussian with the same moments
    torch.testing.assert_close(torch.stack(p.interval(0.8)), p.quantile([0.1, 0.9]))


@pytest.mark.parametrize("kind", NUMERIC)
def test_the_distribution_function_is_the_share_of_samples_below(kind):
    p, y = made(kind), targets(kind)
    drawn = p.sample(20_000).reshape(20_000, N, -1)
    below = (drawn <= y.reshape(N, -1)).double()
    assert ((below.mean(0) - p.cdf(y)).abs() < 5 * 0.5 / math.sqrt(20_000)).all()
    strictly = (drawn < y.reshape(N, -1)).double()
    assert ((strictly.mean(0) - p.cdf(y, below=True)).abs() < 5 * 0.5 / math.sqrt(20_000)).all()


@every_kind
@pytest.mark.parametrize(
    "rows",
    [-1, slice(1, 3), np.arange(N) % 2 == 0, torch.tensor([4, 4])],
    ids=str,
)
def test_rows_are_those_predictions(kind, rows):
    p, y = made(kind), targets(kind)
    index = torch.as_tensor(np.arange(N)[[rows] if isinstance(rows, int) else rows])
    chosen = p[rows]
    assert type(chosen) is type(p) and len(chosen) == len(index)
    assert torch.equal(chosen.mean, p.mean[index]) and torch.equal(chosen.score, p.score[index])
    torch.testing.assert_close(chosen.log_prob(y[index]), p.log_prob(y)[index])


@every_kind
def test_parts_are_joined_again(kind):
    p, y = made(kind), targets(kind)
    joined = fsvi.likelihoods.concatenate([p[:2], p[2:4], p[4]])
    torch.testing.assert_close(joined.log_prob(y), p.log_prob(y))
    torch.testing.assert_close(joined.mean, p.mean)
    halves = mixture([p.draws(slice(0, 3)), p.draws(slice(3, None))])
    torch.testing.assert_close(halves.log_prob(y), p.log_prob(y))


@every_kind
def test_a_summary_has_the_same_numbers_and_is_joined_and_indexed(kind):
    p, names = made(kind), ("mean", "variance", "function_variance", "score")
    joined = fsvi.likelihoods.concatenate([p[:2].summary(), p[2:].summary()])
    for s in (p.summary(), joined):
        for name in names:
            torch.testing.assert_close(getattr(s, name), getattr(p, name))
        assert (len(s), s.is_numeric) == (N, p.is_numeric) and s.summary() is s
        for name in () if p.is_numeric else ("entropy", "expected_entropy", "mutual_information", "labels"):
            torch.testing.assert_close(getattr(s, name)(), getattr(p, name)())
    assert torch.equal(p.summary()[[3, 0]].mean, p.mean[[3, 0]]) and len(p.summary()[2]) == 1
    assert p.summary().to(torch.float32).mean.dtype == torch.float32


# Outputs at every position --------------------------------------------------------------------------------------------


def at_positions(p, shape):
    """The same prediction with its N·… rows laid out as (n, positions...)."""
    return p.mapped(lambda values: values.unflatten(1, shape))


@every_kind
def test_positions_are_predicted_as_rows_are(kind):
    rows, y = made(kind), targets(kind)
    p = at_positions(made(kind), (1, N, 1))
    shaped = y.unflatten(0, (1, N, 1))
    assert p.mean.shape == (1, N, 1, Q) and p.std.shape == p.variance.shape == p.mean.shape and len(p) == 1
    for given, expected in (
        (p.mean, rows.mean),
        (p.std, rows.variance.sqrt()),
        (p.score, rows.score),
        (p.log_prob(shaped), rows.log_prob(y)),
        (p.sample(4, seed=1)[3], rows.sample(4, seed=1)[3]),
        *zip(p.columns().values(), rows.columns().values(), strict=True),
    ):
        torch.testing.assert_close(given.reshape(expected.shape), expected)
    assert p.log_prob(shaped).shape == p.score.shape == (1, N, 1)
    torch.testing.assert_close(p.summary().mean, p.mean)
    torch.testing.assert_close(p.summary().rows().score, rows.score)
    if p.is_numeric:
        torch.testing.assert_close(p.cdf(shaped).reshape(N, Q), rows.cdf(y))
        torch.testing.assert_close(p.quantile(0.3).reshape(N, Q), rows.quantile(0.3))
        torch.testing.assert_close(p.crps(shaped).reshape(N, Q), rows.crps(y))
    else:
        torch.testing.assert_close(p.mutual_information().reshape(-1), rows.mutual_information())


def test_a_missing_label_at_a_position_does_not_count():
    f = torch.randn(S, 2, 4, Q)
    y = torch.tensor([[0, -100, 2, 1], [-100, 1, 1, 0]])
    likelihood = fsvi.Categorical(ignore_index=-100)
    p, observed = likelihood.predictive(f), y != -100
    plain = fsvi.Categorical().predictive(f)
    for one in (p, p.summary()):
        torch.testing.assert_close(one.log_prob(y), plain.log_prob(y.clamp_min(0)) * observed)
    assert likelihood.num_observed(y) == 6 and fsvi.Categorical().num_observed(y) == 8


def test_a_prediction_without_noise_is_finite_and_exact():
    p = GaussianPredictive(torch.ones(1, 2, 1), torch.zeros(1))
    assert p.log_prob(torch.ones(2, 1)).isfinite().all() and (p.quantile(0.9) == 1).all()
    assert fsvi.metrics.coverage(p, torch.ones(2, 1), 0.5) == 1 and fsvi.metrics.crps(p, 3 * torch.ones(2, 1)) == 2


def test_one_line_says_what_it_is(classes):
    assert repr(classes) == f"Predictive(Categorical, {S} draws, mean ({N}, {Q}))"
    assert repr(classes.summary()) == f"Summary(Categorical, mean ({N}, {Q}))"


# Numbers that overflow ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "likelihood",
    [
        fsvi.Categorical(),
        fsvi.Bernoulli(),
        fsvi.Gaussian(),
        fsvi.Gaussian(heteroscedastic=True),
        fsvi.Poisson(),
        fsvi.StudentT(),
    ],
)
@pytest.mark.parametrize("value", [1e3, 3e38, math.nan])
def test_a_prediction_is_finite_or_one_sentence(likelihood, value):
    likelihood.bind(2)
    f = torch.zeros(3, 4, 2)
    f[1, 2, 1] = value
    try:
        p = likelihood.predictive(f)
    except InvalidInputError as error:
        assert "at 1 of 4 inputs" in str(error) and not (value == 1e3 and type(likelihood) is fsvi.Categorical)
        return
    assert not math.isnan(value)
    assert all(bool(values.isfinite().all()) for values in (p.mean, p.variance, p.score))
