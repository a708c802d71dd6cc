"""Predictions with targets that they do not quite fit, for calibration to correct, and the theory of coverage."""

import math

import scipy.stats
import torch
from torch import Tensor

from fsvi.likelihoods import CategoricalPredictive, GaussianPredictive

LEVELS = (0.2, 0.1, 0.05)
"""Chances of error at which coverage is tested: 80%, 90% and 95% sets."""


def class_predictions(
    num: int, seed: int = 0, confidence: float = 2.0, classes: int = 4, draws: int = 5
) -> tuple[CategoricalPredictive, Tensor]:
    """Draws of logits `confidence` times as large as those that the labels follow."""
    generator = torch.Generator().manual_seed(seed)
    true = 1.5 * torch.randn(num, classes, generator=generator, dtype=torch.float64)
    noise = 0.5 * torch.randn(draws, num, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(-1), 1, generator=generator).squeeze(1)
    return CategoricalPredictive(confidence * (true + noise)), labels


def real_predictions(num: int, seed: int = 0, targets: int = 1, draws: int = 5) -> tuple[GaussianPredictive, Tensor]:
    """Draws of means with a noise that depends on the input, and targets (n, targets) from another noise."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    std = normal(1, num, targets).exp()
    means = normal(1, num, targets) + 0.3 * std * normal(draws, num, targets)
    y = means.mean(0) + 2 * std[0] * normal(num, targets)
    return GaussianPredictive(means, std.expand(draws, num, targets).square()), y


def assert_covers(shares: Tensor, alpha: float, num: int, num_test: int) -> None:
    """Shares of covered test rows, one per random split, follow the Beta-binomial distribution that theory gives.

    Without ties, the number of covered rows among `num_test` is exactly BetaBinomial(num_test, k, num + 1 − k), with
    k = ⌈(num + 1)(1 − alpha)⌉, and splits are independent. So the mean over splits has a known standard error; four of
    them are allowed. The spread over splits is compared too, by a chi-square of its variance.
    """
    rank = math.ceil(round((num + 1) * (1 - alpha), 9))
    law = scipy.stats.betabinom(num_test, rank, num + 1 - rank)
    error = 4 * law.std() / num_test / math.sqrt(len(shares))
    assert 1 - alpha - error <= float(shares.mean()) <= 1 - alpha + 1 / (num + 1) + error
    assert abs(float(shares.mean()) - rank / (num + 1)) <= error
    ratio = float((shares * num_test).var()) / law.var()
    assert scipy.stats.chi2(len(shares) - 1).sf(ratio * (len(shares) - 1)) > 1e-4
    assert scipy.stats.chi2(len(shares) - 1).cdf(ratio * (len(shares) - 1)) > 1e-4
