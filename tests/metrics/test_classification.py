import math

import numpy as np
import pytest
import sklearn.metrics
import torch

import fsvi
from fsvi import metrics
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive, GaussianPredictive
from fsvi.metrics import accuracy, aurc, brier, ece, evaluate_classification, nll, referral_curve, reliability

CLASSES = 4


@pytest.fixture
def probabilities():
    return torch.randn(200, CLASSES, dtype=torch.float64).mul(2).softmax(-1)


@pytest.fixture
def labels(probabilities):
    """Labels drawn from the probabilities."""
    return torch.multinomial(probabilities, 1).squeeze(1)


def test_against_other_implementations(probabilities, labels):
    assert accuracy(probabilities, labels) == sklearn.metrics.accuracy_score(labels, probabilities.argmax(1))
    assert nll(probabilities, labels) == pytest.approx(sklearn.metrics.log_loss(labels, probabilities))
    squared = (probabilities.numpy() - np.eye(CLASSES)[labels.numpy()]) ** 2
    assert brier(probabilities, labels) == pytest.approx(squared.sum(1).mean())


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0).long(), r"\(0, 3\)"),
        (torch.tensor([[0.5, 0.5], [2.0, -1.0]]), [0, 1], "row 1"),
        (torch.tensor([[0.5, 0.5]]), [0, 1], r"shape \(2,\)"),
        (torch.tensor([[0.5, 0.5]]), [2], r"2\.\.2"),
        (GaussianPredictive(torch.zeros(1, 1, 1), torch.ones(1)), [0], "prediction of classes"),
    ],
)
def test_bad_input(p, y, message):
    with pytest.raises(InvalidInputError, match=message):
        accuracy(p, y)


# Calibration


@pytest.fixture
def overconfident():
    """Overconfident probabilities, and labels."""
    logits = torch.randn(500, 4, dtype=torch.float64)
    return (3 * logits).softmax(-1), torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def binary(confidences, correct):
    """Two classes, the first predicted with these confidences, right or wrong."""
    confidence = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([confidence, 1 - confidence], 1), 1 - torch.tensor(correct)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_equal_width_against_torchmetrics(overconfident, bins):
    from torchmetrics.functional.classification import multiclass_calibration_error  # takes seconds

    expected = multiclass_calibration_error(*overconfident, num_classes=4, n_bins=bins, norm="l1")
    assert ece(*overconfident, bins=bins) == pytest.approx(float(expected), rel=1e-5)
    assert float(expected) > 0.1


def test_bins_by_hand():
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


# Referral


# Four inputs, the least certain last; the second and the fourth are wrong.
P = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
Y = torch.tensor([0, 1, 1, 1])


@pytest.fixture
def predictions():
    logits = torch.randn(80, 2).double()
    return (2 * logits).softmax(-1), torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def brute_force(p, y, scores, rate):
    """Accuracy and AUROC of the most certain inputs, where the rate keeps a whole number of them."""
    kept = scores.argsort()[: round((1 - rate) * len(y))]
    return accuracy(p[kept], y[kept]), sklearn.metrics.roc_auc_score(y[kept], p[kept, 1])


def test_curve_by_hand():
    found = referral_curve(P, Y, rates=[0, 0.25, 0.5, 0.75, 1])
    torch.testing.assert_close(found.accuracy[:4], torch.tensor([0.5, 2 / 3, 0.5, 1.0]).double())
    assert found.accuracy[4].isnan()
    assert found.auroc[:3].tolist() == [1, 1, 1] and found.auroc[3:].isnan().all()


def test_curve_against_brute_force(predictions):
    p, y = predictions
    scores = torch.rand(80).double()
    rates = [0.0, 0.25, 0.5, 0.8]
    found = referral_curve(p, y, scores, rates)
    expected = torch.tensor([brute_force(p, y, scores, rate) for rate in rates]).double()
    torch.testing.assert_close(torch.stack([found.accuracy, found.auroc], 1), expected)


def test_ties_are_averaged_over():
    """With all scores equal, whom to keep is chance: the accuracy expected is that of all."""
    found = referral_curve(P, Y, torch.zeros(4), rates=[0, 0.3, 0.5, 0.9])
    torch.testing.assert_close(found.accuracy, torch.full((4,), 0.5).double())
    assert found.auroc.tolist() == [1] * 4
    some = referral_curve(P, Y, [0, 1, 1, 1], rates=[0.5])
    torch.testing.assert_close(some.accuracy, torch.tensor([(1 + 1 / 3) / 2]).double())


def test_aurc_by_hand():
    assert aurc(P, Y) == pytest.approx((0 / 1 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    assert aurc(P, Y, torch.zeros(4)) == pytest.approx(0.5)
    assert aurc(P, Y, [0, 1, 1, 1]) == pytest.approx((0 + (2 / 3) / 2 + (4 / 3) / 3 + 2 / 4) / 4)


def test_aurc_is_the_area_over_the_referral_curve(predictions):
    rates = [k / 80 for k in range(80)]
    area = referral_curve(*predictions, rates=rates).accuracy.mean()
    assert aurc(*predictions) == pytest.approx(1 - float(area))


def test_expected_aurc_with_ties_is_the_mean_over_orders(predictions):
    p, y = predictions
    tied = (4 * torch.rand(80)).floor().double()
    values = torch.tensor([aurc(p, y, tied + 1e-3 * torch.rand(80)) for _ in range(300)])
    assert abs(float(values.mean()) - aurc(p, y, tied)) < 4 * float(values.std()) / math.sqrt(300)


# All metrics at once


def test_all_at_once():
    p, y = CategoricalPredictive(torch.randn(3, 40, 3)), torch.arange(40) % 3
    found = evaluate_classification(p, y)
    assert list(found) == ["accuracy", "nll", "brier", "ece_10", "ece_15", "ece_adaptive", "aurc"]
    assert found["ece_10"] == metrics.ece(p, y, bins=10) != found["ece_15"] == metrics.ece(p, y)
    assert found["ece_adaptive"] == metrics.ece(p, y, adaptive=True)
    assert found["aurc"] == metrics.aurc(p, y)


# Positions and missing labels


@pytest.mark.parametrize("summary", [False, True])
def test_positions_with_a_label_are_rows(summary):
    f, y = torch.randn(5, 6, 7, 2), torch.randint(2, (6, 7))
    y[torch.rand(6, 7) < 0.3] = -100
    p = fsvi.Categorical(ignore_index=-100).predictive(f)
    p = p.summary() if summary else p
    observed = y != -100
    rows, labels = CategoricalPredictive(f.flatten(1, 2)[:, observed.flatten()]), y[observed]
    assert evaluate_classification(p, y) == pytest.approx(evaluate_classification(rows, labels), rel=1e-5)
    assert evaluate_classification(p, y) != pytest.approx(evaluate_classification(p, y.clamp_min(0)), rel=1e-2)
    assert aurc(p, y, p.mutual_information()) == pytest.approx(aurc(rows, labels, rows.mutual_information()))
    assert accuracy(p.class_probabilities(), y.clamp_min(0)) == accuracy(p, y.clamp_min(0))
    with pytest.raises(InvalidInputError, match="no labels"):
        accuracy(p, torch.full((6, 7), -100))
