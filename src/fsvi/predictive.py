"""What every method returns and every metric reads: the predictive distribution at some inputs."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.validation import as_tensor, check_labels


class Predictive(ABC):
    """A mixture over function draws: p(y|x) = 1/S Σₛ p(y|fₛ(x)).

    All its attributes are tensors whose first dimension counts the draws.
    """

    samples: Tensor
    """(samples, n, outputs): each draw's class probabilities, or its mean of the targets"""
    score_name: ClassVar[str]
    """what `score` measures: "entropy", "kernel distance" or "standard deviation", in words for people"""

    @property
    def mean(self) -> Tensor:
        """(n, outputs): class probabilities, or E[y]."""
        return self.samples.mean(0)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(n, outputs): how much the draws' class probabilities vary, or Var[y]."""

    @abstractmethod
    def log_prob(self, y: Any) -> Tensor:
        """log p(y|x), the log of the mean density over draws, (n,)."""

    @property
    @abstractmethod
    def score(self) -> Tensor:
        """The uncertainty score that the method's authors use, (n,): one number per input, larger is less certain.

        Referral, detection and every ranking in the reports use it. Classification uses the predictive entropy unless
        the method has a score of its own; regression uses the predictive standard deviation.
        """

    def __len__(self) -> int:
        return self.samples.shape[1]


class CategoricalPredictive(Predictive):
    """Class probabilities from `logits` of shape (samples, n, classes); all entropies are in nats."""

    score_name = "entropy"

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = _precise(logits).log_softmax(-1)

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """(samples, n, classes): each draw's class probabilities."""
        return self.log_probs.exp()

    @property
    def variance(self) -> Tensor:
        """Variance over draws of each class's probability, (n, classes): the epistemic part."""
        return self.samples.var(0, correction=0)

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ p(y|fₛ(x)) for integer labels, (n,)."""
        y = check_labels(_targets(y, self.log_probs), self.log_probs.shape[-1])
        chosen = self.log_probs.gather(2, y.reshape(1, -1, 1).expand(len(self.log_probs), -1, 1)).squeeze(-1)
        return chosen.logsumexp(0) - math.log(len(chosen))

    def entropy(self) -> Tensor:
        """Predictive entropy H[E p], (n,): total uncertainty."""
        return _entropy(self.mean)

    def expected_entropy(self) -> Tensor:
        """E H[p] over draws, (n,): what would remain if the function were known."""
        return -(self.samples * self.log_probs).nan_to_num(0.0).sum(-1).mean(0)

    def mutual_information(self) -> Tensor:
        """H[E p] − E H[p], (n,): what is not known of the function.

        It is the mean of KL(p ‖ E p) over draws, exactly 0 where draws agree: a difference of entropies would rank
        such inputs by its rounding.
        """
        top = self.log_probs.amax(0)
        log_mean = top + (self.log_probs - top).exp().mean(0).log()
        return (self.samples * (self.log_probs - log_mean)).nan_to_num(0.0).sum(-1).mean(0).clamp_min(0.0)

    @property
    def score(self) -> Tensor:
        """The predictive entropy, (n,)."""
        return self.entropy()

    def labels(self) -> Tensor:
        """The most probable class, (n,)."""
        return self.mean.argmax(-1)


class GaussianPredictive(Predictive):
    """Real targets: draws of the mean, `samples` (samples, n, targets), and the noise's variance around each.

    `noise_variance` is (targets,), or like `samples` when the noise depends on the input.
    """

    score_name = "standard deviation"

    def __init__(self, samples: Tensor, noise_variance: Tensor) -> None:
        self.samples = _precise(samples)
        self.noise_variance = _precise(noise_variance).expand(samples.shape)

    @property
    def function_variance(self) -> Tensor:
        """Variance of the function alone, without noise, (n, targets): the epistemic part."""
        return self.samples.var(0, correction=0)

    @property
    def variance(self) -> Tensor:
        """Var[y] = E[noise] + Var[f], (n, targets)."""
        return self.noise_variance.mean(0) + self.function_variance

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ Π_q N(y_q; f_q, noise_q), (n,)."""
        y = _targets(y, self.samples)
        if y.numel() != self.samples[0].numel():
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}; predicted is {tuple(self.mean.shape)}.")
        y = y.reshape(self.samples.shape[1:])
        squared = (y - self.samples).square() / self.noise_variance
        logs = -0.5 * (squared + self.noise_variance.log() + math.log(2 * math.pi)).sum(-1)
        return logs.logsumexp(0) - math.log(len(logs))

    @property
    def score(self) -> Tensor:
        """The predictive standard deviation, (n,): the root of the variance averaged over targets."""
        return self.variance.mean(-1).sqrt()


def mixture(parts: Sequence[Predictive]) -> Predictive:
    """The draws of several predictives as one; each part weighs as many as it has."""
    joined = copy.copy(parts[0])
    for name in vars(joined):
        setattr(joined, name, torch.cat([getattr(part, name) for part in parts]))
    return joined


def select(p: Predictive, rows: Tensor) -> Predictive:
    """The predictions of some inputs.

    Args:
        p: The predictions.
        rows: The indices of the inputs.
    """
    chosen = copy.copy(p)
    for name, values in vars(p).items():
        setattr(chosen, name, values[:, rows.to(values.device)])
    return chosen


def _precise(values: Tensor) -> Tensor:
    """In float32 at least: probabilities with the eight bits of a bfloat16 do not add up to one."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _entropy(probabilities: Tensor) -> Tensor:
    return torch.special.entr(probabilities).sum(-1)


def _targets(y: Any, samples: Tensor) -> Tensor:
    """The targets as a tensor on the samples' device, one per prediction."""
    y = as_tensor("y", y).to(samples.device)
    if y.dim() == 0 or len(y) != samples.shape[1]:
        raise InvalidInputError(f"there are {samples.shape[1]} predictions, but targets of shape {tuple(y.shape)}.")
    return y
