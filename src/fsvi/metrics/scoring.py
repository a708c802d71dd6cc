"""The quality of class probabilities: accuracy and two proper scores."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import one_hot

from fsvi.likelihoods import Predictive
from fsvi.metrics.inputs import Probabilities, check_prediction, check_predictions


def accuracy(p: Probabilities, y: Any) -> float:
    """The fraction of inputs whose most probable class is right; of equally probable classes, the first counts.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
    """
    probabilities, y = check_predictions(p, y)
    return float((probabilities.argmax(1) == y).double().mean())


def nll(p: Probabilities, y: Any) -> float:
    """The mean of −log p(y|x) in nats, with p(y|x) = 1/S Σₛ p(y|fₛ(x)): the log of the mean over draws.

    It is infinite if a label has probability 0. Predictions have log probabilities, so tiny probabilities that would
    underflow stay finite.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
    """
    probabilities, y = check_predictions(p, y)
    if isinstance(p, Predictive):
        return -float(check_prediction(p).log_prob(y).double().mean())
    return -float(probabilities.gather(1, y[:, None]).log().mean())


def brier(p: Probabilities, y: Any) -> float:
    """The mean of Σ_c (p_c − 1[y = c])² (Brier 1950), from 0 to 2, because the sum is over all classes.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
    """
    probabilities, y = check_predictions(p, y)
    return float((probabilities - one_hot(y, probabilities.shape[1])).square().sum(1).mean())
