import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin

from calibration_cases import LEVELS, real_predictions
from fsvi.calibration import ConformalIntervals
from fsvi.likelihoods import GaussianPredictive


def prediction(mean, std):
    mean, std = (torch.as_tensor(values, dtype=torch.float64).reshape(1, -1, 1) for values in (mean, std))
    return GaussianPredictive(mean, std.square())


def test_intervals_by_hand():
    """Residuals of 1..9 standard deviations: with α = 0.2 the 8th of 9 is the reach."""
    std = torch.tensor([0.5, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0] * 4 + [1.0], dtype=torch.float64)
    step = ConformalIntervals().fit(prediction(torch.zeros(9), std), signs * torch.arange(1, 10) * std)
    assert step.scores.squeeze(1).tolist() == pytest.approx(range(1, 10))
    lower, upper = step.intervals(prediction([10.0, 20.0], [1.0, 0.5]), alpha=0.2)
    assert lower.tolist() == [[pytest.approx(2.0)], [pytest.approx(16.0)]]
    assert upper.tolist() == [[pytest.approx(18.0)], [pytest.approx(24.0)]]


def test_the_whole_variance_counts_not_the_noise_alone():
    p, y = real_predictions(100)
    fresh, _ = real_predictions(50, seed=1)
    intervals = ConformalIntervals().fit(p, y).intervals(fresh)
    ratio = intervals.width / fresh.variance.sqrt()
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    torch.testing.assert_close((intervals.lower + intervals.upper) / 2, fresh.mean)


def test_every_target_has_its_own_reach():
    p, y = real_predictions(100, targets=2)
    y[:, 1] = p.mean[:, 1] + 10 * (y[:, 1] - p.mean[:, 1])
    both = ConformalIntervals().fit(p, y).intervals(p)
    for index in range(2):
        column = GaussianPredictive(p.samples[..., [index]], p.noise_variance[..., [index]])
        alone = ConformalIntervals().fit(column, y[:, index]).intervals(column)
        torch.testing.assert_close(both.width[:, [index]], alone.width)


class Column(RegressorMixin, BaseEstimator):
    """A fitted regressor that predicts one of its inputs; with `return_std` also the one after it."""

    def __init__(self, column=0):
        self.column = column
        self.n_features_in_ = 2

    def fit(self, X, y):
        return self

    def predict(self, X, return_std=False):
        return (X[:, self.column], X[:, self.column + 1]) if return_std else X[:, self.column]


def mapie_intervals(score, p, y, fresh):
    """MAPIE's intervals for the three levels, (n, 2, levels)."""
    from mapie.regression import SplitConformalRegressor

    mapie = SplitConformalRegressor(Column(), [1 - alpha for alpha in LEVELS], score, prefit=True)
    mapie.conformalize(columns(p), y.squeeze(1).numpy())
    return mapie.predict_interval(columns(fresh))[1]


def columns(p):
    return torch.cat([p.mean, p.variance.sqrt()], 1).numpy()


@pytest.mark.parametrize("num", [100, 237])
def test_intervals_are_mapies(num):
    from mapie.conformity_scores import ResidualNormalisedScore

    p, y = real_predictions(num)
    fresh, _ = real_predictions(300, seed=1)
    expected = mapie_intervals(ResidualNormalisedScore(Column(1), prefit=True), p, y, fresh)
    step = ConformalIntervals().fit(p, y)
    for index, alpha in enumerate(LEVELS):
        np.testing.assert_allclose(torch.cat(step.intervals(fresh, alpha), 1), expected[:, :, index], rtol=1e-12)
