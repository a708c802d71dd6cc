import numpy as np
import pytest

from fsvi.estimators import FSVIRegressor

FAST = {"epochs": 40, "lr": 0.05, "batch_size": 32, "num_samples": 10, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 2))
    return x, 100 + 10 * x[:, 0] + 3 * generator.normal(size=600)


def test_intervals_without_calibration_are_gaussian(data):
    x, y = data
    model = FSVIRegressor("map", **FAST).fit(x[:200], y[:200])
    mean, std = model.predict(x, return_std=True)
    lower, upper = model.predict_interval(x, alpha=0.05)
    np.testing.assert_allclose(lower, mean - 1.959964 * std, rtol=1e-6)
    np.testing.assert_allclose(upper, mean + 1.959964 * std, rtol=1e-6)


@pytest.mark.parametrize("targets", [1, 2])
def test_calibrated_intervals_keep_their_promise(data, targets):
    x, y = data
    y = y if targets == 1 else np.stack([y, -5 * y], 1)
    model = FSVIRegressor("map", **FAST).fit(x[:200], y[:200]).calibrate(x[200:400], y[200:400])
    lower, upper = model.predict_interval(x[400:], alpha=0.1)
    assert lower.shape == y[400:].shape
    inside = ((lower <= y[400:]) & (y[400:] <= upper)).mean()
    assert 0.82 < inside < 0.98  # 0.9, give or take three standard errors of both samples


def test_a_few_rows_are_enough_to_see_their_own_noise(data):
    """Without held-out rows the noise would be that of a network that has memorized them."""
    x, y = data
    covered = []
    for start in (0, 20, 40):
        mean, std = FSVIRegressor(random_state=0).fit(x[start:][:20], y[start:][:20]).predict(x[100:], return_std=True)
        covered.append((np.abs(y[100:] - mean) < 1.96 * std).mean())
    assert np.mean(covered) > 0.8
