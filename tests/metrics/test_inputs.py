import math

import pytest
import torch

from fsvi import CategoricalPredictive, InvalidInputError
from fsvi.metrics.inputs import (
    check_prediction,
    check_predictions,
    check_probabilities,
    check_scores,
    total_uncertainty,
)

HALF = torch.tensor([[0.5, 0.5], [1.0, 0.0]])


def test_probabilities_become_float64_from_a_prediction_or_a_tensor():
    p = CategoricalPredictive(torch.zeros(3, 2, 4))
    torch.testing.assert_close(check_probabilities(p), torch.full((2, 4), 0.25, dtype=torch.float64))
    assert check_probabilities(HALF.tolist()).dtype == torch.float64
    check_probabilities(torch.softmax(torch.randn(50, 10), 1).half())


@pytest.mark.parametrize(
    "p",
    [torch.zeros(2), torch.zeros(0, 2), torch.tensor([[0.5, 0.6]]), torch.tensor([[1.5, -0.5]]), HALF * math.nan],
)
def test_what_is_not_a_distribution_is_refused(p):
    with pytest.raises(InvalidInputError, match="p"):
        check_probabilities(p)


def test_the_first_wrong_row_is_named():
    with pytest.raises(InvalidInputError, match="row 1"):
        check_probabilities(torch.tensor([[0.5, 0.5], [0.9, 0.9]]))


@pytest.mark.parametrize("y", [[0], [0, 2], [0.0, 1.0]])
def test_labels_must_match_the_predictions(y):
    with pytest.raises(InvalidInputError, match="labels"):
        check_predictions(HALF, y)


@pytest.mark.parametrize("scores", [[], [[1.0]], [1.0, math.nan], [math.inf]])
def test_scores_are_finite_and_one_per_input(scores):
    with pytest.raises(InvalidInputError, match="scores"):
        check_scores("scores", scores)


def test_only_predictions_of_classes_have_entropies():
    with pytest.raises(InvalidInputError, match="p is a Tensor"):
        check_prediction(HALF)
    with pytest.raises(InvalidInputError, match="no predictions"):
        check_prediction(CategoricalPredictive(torch.zeros(3, 0, 2)))


def test_plain_probabilities_are_ranked_by_their_entropy():
    torch.testing.assert_close(total_uncertainty(HALF), torch.tensor([math.log(2), 0.0], dtype=torch.float64))
    logits = torch.randn(1, 5, 3)
    p = CategoricalPredictive(logits)
    torch.testing.assert_close(total_uncertainty(p), total_uncertainty(logits[0].softmax(1)), atol=1e-6, rtol=1e-5)
