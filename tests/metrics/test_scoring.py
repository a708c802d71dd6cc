import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from torchmetrics.functional.classification import multiclass_accuracy

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive
from fsvi.metrics import accuracy, brier, nll

CLASSES = 4


@pytest.fixture
def probabilities():
    return torch.randn(200, CLASSES, dtype=torch.float64).mul(2).softmax(-1)


@pytest.fixture
def labels(probabilities):
    """Labels drawn from the probabilities."""
    return torch.multinomial(probabilities, 1).squeeze(1)


def test_against_other_implementations(probabilities, labels):
    others = multiclass_accuracy(probabilities, labels, CLASSES, average="micro")
    assert accuracy(probabilities, labels) == pytest.approx(float(others))
    assert nll(probabilities, labels) == pytest.approx(sklearn.metrics.log_loss(labels, probabilities))
    squared = (probabilities.numpy() - np.eye(CLASSES)[labels.numpy()]) ** 2
    assert brier(probabilities, labels) == pytest.approx(squared.sum(1).mean())


def test_by_hand():
    p = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3]])
    y = torch.tensor([0, 1, 1])
    assert accuracy(p, y) == pytest.approx(2 / 3)
    assert nll(p, y) == pytest.approx(-math.log(0.8 * 0.6 * 0.3) / 3)
    assert brier(p, y) == pytest.approx(2 * (0.04 + 0.16 + 0.49) / 3)


def test_a_prediction_is_scored_by_its_mean_over_draws():
    p = CategoricalPredictive(torch.randn(5, 30, CLASSES))
    y = torch.arange(30) % CLASSES
    for metric in (accuracy, nll, brier):
        assert metric(p, y) == pytest.approx(metric(p.mean, y), rel=1e-5)
    gibbs = -float(p.log_probs.gather(2, y.expand(5, 30)[..., None]).mean())
    assert nll(p, y) < gibbs - 0.1


def test_certainty_right_and_wrong():
    certain = torch.tensor([[1.0, 0.0]])
    assert (accuracy(certain, [0]), nll(certain, [0]), brier(certain, [0])) == (1, 0, 0)
    assert (accuracy(certain, [1]), nll(certain, [1]), brier(certain, [1])) == (0, math.inf, 2)


def test_log_likelihood_does_not_underflow_with_a_prediction():
    assert nll(CategoricalPredictive(torch.tensor([[[1000.0, 0.0]]])), [1]) == pytest.approx(1000)


def test_equally_probable_classes_count_as_the_first():
    p = torch.full((2, 3), 1 / 3)
    assert accuracy(p, [0, 2]) == 0.5


def test_labels_may_be_a_column_or_an_array(probabilities, labels):
    assert accuracy(probabilities.numpy(), labels.numpy()[:, None]) == accuracy(probabilities, labels)


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0).long(), r"\(0, 3\)"),
        (torch.rand(3), [0, 1, 0], r"\(3,\)"),
        (torch.tensor([[0.5, 0.5], [2.0, -1.0]]), [0, 1], "row 1"),
        (torch.tensor([[math.nan, 1.0]]), [0], "row 0"),
        (torch.tensor([[0.5, 0.4]]), [0], "row 0"),
        (torch.tensor([[0.5, 0.5]]), [0, 1], "2 labels"),
        (torch.tensor([[0.5, 0.5]]), [2], r"2\.\.2"),
        (torch.tensor([[0.5, 0.5]]), [0.0], "labels.*type"),
    ],
)
@pytest.mark.parametrize("metric", [accuracy, nll, brier])
def test_bad_input(metric, p, y, message):
    with pytest.raises(InvalidInputError, match=message):
        metric(p, y)
