import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive
from fsvi.metrics import ece, reliability


@pytest.fixture
def predictions():
    """Overconfident probabilities, and labels."""
    logits = torch.randn(500, 4, dtype=torch.float64)
    return (3 * logits).softmax(-1), torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def binary(confidences, correct):
    """Two classes, the first predicted with these confidences, right or wrong."""
    confidence = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([confidence, 1 - confidence], 1), 1 - torch.tensor(correct)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_equal_width_against_torchmetrics(predictions, bins):
    expected = multiclass_calibration_error(*predictions, num_classes=4, n_bins=bins, norm="l1")
    assert ece(*predictions, bins=bins) == pytest.approx(float(expected), rel=1e-5)
    assert float(expected) > 0.1


def test_by_hand():
    p, y = binary([0.55, 0.6, 0.9, 0.92], [1, 0, 1, 1])
    found = reliability(p, y, bins=10)
    np.testing.assert_allclose(found.edges, np.linspace(0, 1, 11))
    assert found.count.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 1, 1]
    np.testing.assert_allclose(found.confidence[[5, 8, 9]], [0.575, 0.9, 0.92])
    np.testing.assert_allclose(found.accuracy[[5, 8, 9]], [0.5, 1, 1])
    assert found.confidence[0].isnan() and found.accuracy[0].isnan()
    assert ece(p, y, bins=10) == pytest.approx((2 * 0.075 + 0.1 + 0.08) / 4)


def test_adaptive_bins_by_hand():
    p, y = binary([0.6, 0.7, 0.8, 0.9, 0.95, 1.0], [1, 0, 1, 1, 1, 0])
    found = reliability(p, y, bins=3, adaptive=True)
    assert found.count.tolist() == [2, 2, 2]
    np.testing.assert_allclose(found.edges, [0, 0.7, 0.9, 1.0])
    assert found.ece == pytest.approx((2 * 0.15 + 2 * 0.15 + 2 * 0.475) / 6)


def test_adaptive_bins_hold_equally_many(predictions):
    found = reliability(*predictions, bins=7, adaptive=True)
    assert found.count.sum() == 500 and set(found.count.tolist()) == {71, 72}


@pytest.mark.parametrize("adaptive", [False, True])
def test_order_does_not_matter_even_with_ties(adaptive):
    p, y = binary([0.8] * 6 + [0.6] * 6, [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0])
    for order in map(torch.randperm, [12] * 10):
        assert ece(p[order], y[order], 5, adaptive) == pytest.approx((6 * 0.3 + 6 * 0.1) / 12)


def test_equal_confidences_make_one_adaptive_bin():
    found = reliability(*binary([0.7] * 10, [1] * 10), bins=4, adaptive=True)
    assert found.count.tolist() == [10] and found.ece == pytest.approx(0.3)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("right", "expected"), [(1, 0.0), (0, 1.0)])
def test_one_certain_prediction(adaptive, right, expected):
    assert ece(*binary([1.0], [right]), adaptive=adaptive) == expected


def test_of_a_prediction(predictions):
    p = CategoricalPredictive(torch.randn(3, 500, 4))
    assert ece(p, predictions[1]) == pytest.approx(ece(p.mean, predictions[1]))


@pytest.mark.parametrize("bins", [0, 2.5])
def test_bad_bins(predictions, bins):
    with pytest.raises(InvalidInputError, match="bins="):
        ece(*predictions, bins=bins)
