"""How good class probabilities are: accuracy and the two usual proper scores."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import one_hot

from fsvi.metrics.inputs import Probabilities, check_categorical, check_predictions
from fsvi.predictive import CategoricalPredictive


def accuracy(p: Probabilities, y: Any) -> float:
    """The share of inputs whose most probable class is right; of equally probable classes the first counts."""
    probabilities, y = check_predictions(p, y)
    return float((probabilities.argmax(1) == y).double().mean())


def nll(p: Probabilities, y: Any) -> float:
    """Mean of −log p(y|x), in nats, with p(y|x) = 1/S Σₛ p(y|fₛ(x)): the log of the mean over draws.

    It is infinite where a label was given probability 0. A prediction knows its log probabilities, so that what would
    underflow as a probability stays finite.
    """
    probabilities, y = check_predictions(p, y)
    if isinstance(p, CategoricalPredictive):
        return -float(check_categorical(p).log_prob(y).double().mean())
    return -float(probabilities.gather(1, y[:, None]).log().mean())


def brier(p: Probabilities, y: Any) -> float:
    """Mean of Σ_c (p_c − 1[y = c])², from 0 to 2: of two classes both count (Brier 1950)."""
    probabilities, y = check_predictions(p, y)
    return float((probabilities - one_hot(y, probabilities.shape[1])).square().sum(1).mean())
