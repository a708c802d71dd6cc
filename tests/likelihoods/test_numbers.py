import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import fsvi
from likelihood_cases import NUMERIC, N, made, targets

every_kind = pytest.mark.parametrize("kind", NUMERIC)


def in_scipy(p, kind):
    """The distributions of each draw in SciPy, (samples, n, targets)."""
    if kind == "gaussian":
        return scipy.stats.norm(p.samples.numpy(), p.noise_variance.sqrt().numpy())
    if kind == "counts":
        return scipy.stats.poisson(p.samples.numpy())
    if kind == "student":
        return scipy.stats.t(p.parameters["df"].numpy(), p.samples.numpy(), p.parameters["scale"].numpy())
    return scipy.stats.laplace(p.parameters["loc"].numpy(), p.parameters["scale"].numpy())


@every_kind
def test_density_moments_and_distribution_function_are_those_of_scipy(kind):
    p, y = made(kind), targets(kind)
    theirs = in_scipy(p, kind)
    logs = (theirs.logpmf if kind == "counts" else theirs.logpdf)(y.numpy()).sum(-1)
    np.testing.assert_allclose(p.log_prob(y), np.log(np.exp(logs).mean(0)), rtol=1e-9)
    np.testing.assert_allclose(p.mean, theirs.mean().mean(0), rtol=1e-9)
    np.testing.assert_allclose(p.variance, theirs.var().mean(0) + theirs.mean().var(0), rtol=1e-9)
    np.testing.assert_allclose(p.cdf(y), theirs.cdf(y.numpy()).mean(0), rtol=1e-9)
    np.testing.assert_allclose(p.score, np.sqrt(p.variance.numpy().mean(-1)))


@every_kind
def test_quantiles_of_a_single_draw_are_those_of_scipy(kind):
    p = made(kind).draws(slice(0, 1))
    for q in (0.03, 0.5, 0.97):
        np.testing.assert_allclose(p.quantile(q), in_scipy(p, kind).ppf(q)[0], rtol=1e-8, atol=1e-8)


@every_kind
def test_the_crps_is_the_integral(kind):
    p, y = made(kind), targets(kind)
    ours = p.crps(y)
    for row, target in ((0, 0), (3, 1)):
        one, at = p.column(target), float(y[row, target])

        def difference(t, one=one, row=row, at=at):
            return (float(one.cdf(torch.full((N, 1), t, dtype=torch.float64))[row, 0]) - (t >= at)) ** 2

        if kind == "counts":
            expected = sum(difference(float(t)) for t in range(200))
        else:
            sides = [scipy.integrate.quad(difference, *ends, limit=80)[0] for ends in ((-200, at), (at, 200))]
            expected = sum(sides)
        assert float(ours[row, target]) == pytest.approx(expected, rel=2e-3)


@every_kind
def test_targets_in_the_sample_are_covered_as_often_as_promised(kind):
    """Across many samples, the central 80% interval holds at least 80%, and not much more for continuous targets."""
    p = made(kind)
    shares = [fsvi.metrics.coverage(p, y, 0.8) for y in p.sample(400, seed=2)]
    assert 0.78 < np.mean(shares) < (0.98 if kind == "counts" else 0.82)


def test_a_scaled_student_t_covers_what_it_should():
    """Targets three times as far from the mean than predicted give a factor of about three."""
    p = fsvi.likelihoods.concatenate([made("student", 1)] * 200)
    y = p.mean + 3 * (p.sample(1, seed=5)[0] - p.mean)
    scaling = fsvi.calibration.VarianceScaling().fit(p, y)
    assert float(scaling.factor) == pytest.approx(3, rel=0.15)
    assert scaling(p).log_prob(y).mean() > p.log_prob(y).mean() + 0.2
