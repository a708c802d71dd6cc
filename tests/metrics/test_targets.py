"""Metrics take the targets that `fit` took, in every form."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi import metrics
from fsvi.errors import InvalidInputError

LABELS = torch.tensor([0, 1, 1, 0])
VALUES = torch.tensor([0.5, -1.0, float("nan"), 2.0])
GRID = torch.arange(2 * 3 * 4 * 2).reshape(2, 2, 3, 4).float()  # channels second


def predicted(net, likelihood, x, y):
    method = fsvi.MAP(net, likelihood)
    assert sum(method(x, y).values()).isfinite()
    return method.predict(x, 3)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "usual", "others"),
    [
        (
            fsvi.Categorical(),
            2,
            LABELS,
            [LABELS[:, None], LABELS.int(), LABELS.tolist(), nn.functional.one_hot(LABELS)],
        ),
        (fsvi.Bernoulli(), 1, LABELS, [LABELS.float(), LABELS.float()[:, None], LABELS.bool(), LABELS.numpy()]),
        (fsvi.Gaussian(), 1, VALUES, [VALUES[:, None], VALUES.double().numpy(), VALUES.tolist()]),
        (fsvi.Poisson(), 1, VALUES.square().round(), [VALUES.square().round()[:, None]]),
    ],
)
def test_every_form_of_the_same_targets_gives_the_same_numbers(likelihood, outputs, usual, others):
    evaluate = metrics.evaluate_regression if likelihood.is_numeric else metrics.evaluate_classification
    x = torch.randn(4, 3)
    net = nn.Linear(3, outputs)
    wanted = evaluate(predicted(net, likelihood, x, usual), usual)
    for y in others:
        y = y.float() if isinstance(y, torch.Tensor) and y.shape == (4, 2) else y
        p = predicted(net, likelihood, x, y)
        assert evaluate(p, y) == pytest.approx(wanted)
        torch.testing.assert_close(p.log_prob(y), p.log_prob(usual), check_dtype=False)


@pytest.mark.parametrize("y", [GRID, GRID.movedim(1, -1)])
def test_targets_at_positions_may_be_laid_out_as_outputs_or_as_predictions(y):
    torch.manual_seed(0)
    method = fsvi.MAP(nn.Conv2d(1, 2, 1), fsvi.Gaussian())
    x = torch.randn(2, 1, 3, 4)
    error = (method.predict(x).mean - GRID.movedim(1, -1)).square().mean()
    assert metrics.rmse(method.predict(x), y) == pytest.approx(float(error.sqrt()))
    torch.testing.assert_close(method(x, y)["nll"], method(x, GRID)["nll"])


@pytest.mark.parametrize(
    ("likelihood", "y", "said"),
    [
        (fsvi.Categorical(), torch.full((4, 2), 0.5), "argmax"),
        (fsvi.Bernoulli(), torch.full((4, 1), 0.5), "0 or 1"),
    ],
)
def test_targets_that_are_unsure_are_no_labels(likelihood, y, said):
    p = predicted(nn.Linear(3, y.shape[1]), likelihood, torch.randn(4, 3), y)
    for metric in (metrics.accuracy, metrics.nll):
        with pytest.raises(InvalidInputError, match=said):
            metric(p, y)


def test_a_missing_count_has_no_crps():
    p = fsvi.Poisson().predictive(torch.zeros(1, 2, 1))
    assert p.crps([1.0, float("nan")])[:, 0].isnan().tolist() == [False, True]


def test_a_summary_of_numbers_says_what_it_lacks():
    summary = fsvi.Gaussian().predictive(torch.zeros(1, 2, 1)).summary()
    for metric in (metrics.log_likelihood, metrics.coverage, metrics.crps):
        with pytest.raises(InvalidInputError, match="predict without summary=True"):
            metric(summary, [0.0, 1.0])
