"""Predictions of one class per input."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.predictive.base import Predictive, as_targets, log_mean_exp, precise
from fsvi.validation import check_labels

if TYPE_CHECKING:
    from typing_extensions import Self


class CategoricalPredictive(Predictive):
    """Class probabilities; all entropies are in nats.

    Args:
        logits: The draws' outputs, (samples, n, classes).
        ignore_index: The label of inputs without a target, which `log_prob` counts as 0; None if there is none.
    """

    score_name = "entropy"
    ignore_index: int | None = None

    def __init__(self, logits: Tensor, ignore_index: int | None = None) -> None:
        self.log_probs = precise(logits).log_softmax(-1)
        if ignore_index is not None:
            self.ignore_index = ignore_index

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """(samples, n, classes): each draw's class probabilities."""
        return self.log_probs.exp()

    @property
    def variance(self) -> Tensor:
        """Variance over draws of each class's probability, (n, classes): the epistemic part."""
        return self.function_variance

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ p(y|fₛ(x)) for integer labels, (n,)."""
        y = as_targets(y, self.log_probs)
        ignored = None
        if self.ignore_index is not None:
            ignored = (y == self.ignore_index).reshape(len(self))
            y = y.masked_fill(y == self.ignore_index, 0)
        y = check_labels(y, self.log_probs.shape[-1])
        chosen = self.log_probs.gather(2, y.reshape(1, -1, 1).expand(len(self.log_probs), -1, 1)).squeeze(-1)
        logs = log_mean_exp(chosen)
        return logs if ignored is None else logs.masked_fill(ignored, 0.0)

    def entropy(self) -> Tensor:
        """Predictive entropy H[E p], (n,): total uncertainty."""
        return torch.special.entr(self.mean).sum(-1)

    def expected_entropy(self) -> Tensor:
        """E H[p] over draws, (n,): what would remain if the function were known."""
        return -(self.samples * self.log_probs).nan_to_num(0.0).sum(-1).mean(0)

    def mutual_information(self) -> Tensor:
        """H[E p] − E H[p], (n,): the part due to the unknown function.

        It is the mean of KL(p ‖ E p) over draws, exactly 0 where draws agree: a difference of entropies would rank
        such inputs by its rounding.
        """
        return mean_divergence(self.log_probs).sum(-1).clamp_min(0.0)

    @property
    def score(self) -> Tensor:
        """The predictive entropy, (n,)."""
        return self.entropy()

    def class_probabilities(self) -> Tensor:
        """The mean over draws, (n, classes)."""
        return self.mean

    def class_log_probs(self) -> Tensor:
        """(samples, n, classes)."""
        return self.log_probs

    def with_class_logits(self, logits: Tensor) -> Self:
        """A copy with other logits; everything else that a method's own prediction has stays."""
        other = copy.copy(self)
        other.log_probs = logits.log_softmax(-1)
        return other

    def labels(self) -> Tensor:
        """The most probable class, (n,)."""
        return self.mean.argmax(-1)

    def point(self) -> Tensor:
        """The most probable class, (n,)."""
        return self.labels()

    def distribution(self) -> D.Categorical:
        """The average of the draws' distributions, which is categorical again."""
        return D.Categorical(probs=self.mean, validate_args=False)

    def noisy(self, draws: Tensor, generator: torch.Generator) -> Tensor:
        """A label per draw and input, (len(draws), n)."""
        probabilities = self.samples[draws.to(self.log_probs.device)].cpu().flatten(0, 1)
        labels = torch.multinomial(probabilities, 1, generator=generator)
        return labels.reshape(len(draws), -1).to(self.log_probs.device)

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """The probability of the classes up to y, (n, 1): for classes that have an order."""
        y = check_labels(as_targets(y, self.log_probs), self.log_probs.shape[-1])[:, None]
        up_to = self.mean.cumsum(-1).gather(1, y)
        return up_to - self.mean.gather(1, y) if below else up_to

    def one_quantile(self, q: float) -> Tensor:
        """The first class at which the probabilities add up to `q`, (n, 1): for classes that have an order."""
        sums = self.mean.cumsum(-1)
        return (sums[:, :-1] < q).sum(-1, keepdim=True)

    def column(self, index: int) -> Self:
        """Refused: a class by itself is not a prediction."""
        self._refuse("single targets")

    def columns(self) -> dict[str, Tensor]:
        """The most probable class with its probability, entropy and mutual information."""
        return {
            "label": self.labels(),
            "probability": self.mean.amax(-1),
            "entropy": self.entropy(),
            "mutual_information": self.mutual_information(),
        }

    def graph_outputs(self) -> dict[str, Tensor]:
        """Class probabilities, entropy and mutual information."""
        return {"mean": self.mean, "entropy": self.entropy(), "mutual_information": self.mutual_information()}

    def constant_nll(self, y: Tensor) -> float | None:
        """The entropy of the classes' frequencies."""
        if y.is_floating_point():
            return float(torch.special.entr(y.double().mean(0)).sum())
        known = y if self.ignore_index is None else y[y != self.ignore_index]
        shares = torch.bincount(known).double() / max(1, len(known))
        return float(torch.special.entr(shares).sum())


def mean_divergence(log_probs: Tensor) -> Tensor:
    """1/S Σₛ pₛ log(pₛ / p̄) for each outcome, with p̄ the mean over draws: summed over outcomes, a mean KL."""
    top = log_probs.amax(0)
    log_mean = top + (log_probs - top).exp().mean(0).log()
    return (log_probs.exp() * (log_probs - log_mean)).nan_to_num(0.0).mean(0)
