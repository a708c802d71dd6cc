"""Labels that are present or absent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributions as D
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.numbers import NumberLikelihood
from fsvi.likelihoods.predictive import Predictive, as_numbers, check_defined, check_present, named


class Bernoulli(NumberLikelihood):
    """Labels of 0 and 1, one per output of the network; the outputs are logits of 1.

    With one output it is a classifier of two classes with the likelihood of `Categorical` and outputs (0, f). With
    several, labels are independent given the outputs, and any number of them may be present. Targets may be
    probabilities. NaN is a label that is unknown.

    Examples:
        >>> f = torch.zeros(10, 4, 1)  # outputs of 10 draws of the function at 4 inputs
        >>> fsvi.Bernoulli().predictive(f).mean[0]
        tensor([0.5000])
    """

    is_numeric = False

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Labels as floats (n, outputs)."""
        y = super().check_targets(y, num_outputs)
        wrong = (y < 0) | (y > 1)
        if bool(wrong.any()):
            raise InvalidInputError(f"labels hold {y[wrong][0]:.4g}; Bernoulli needs 0, 1 or probabilities.")
        return y

    def losses(self, f: Tensor, y: Tensor) -> Tensor:
        """−y log p − (1 − y) log(1 − p)."""
        return F.binary_cross_entropy_with_logits(f, y.expand(f.shape), reduction="none")

    def predictive(self, f: Tensor) -> BernoulliPredictive:
        """Probabilities of the labels, averaged over draws."""
        return BernoulliPredictive(f)

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """√(p (1 − p)) of every label."""
        return self.present((0.5 * (F.logsigmoid(f) + F.logsigmoid(-f))).exp(), y)


class BernoulliPredictive(Predictive):
    """The probability of each label; entropies are in nats and summed over labels.

    With one label it has the class probabilities, entropies and log-probabilities of a `CategoricalPredictive` of two
    classes. With several, `column(i)` is the prediction of one of them.

    Args:
        logits: The draws' outputs, (samples, n, labels).
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__(D.Bernoulli, logits=logits)
        check_defined(self.samples)

    @property
    def logits(self) -> Tensor:
        """Each draw's logits of 1, (samples, n, labels)."""
        return self.parameters["logits"]

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ Π_l p(y_l|fₛ(x)), (n,), for y of 0 and 1; labels that are NaN are left out."""
        return super().log_prob(check_present(as_numbers(y, self.logits)))

    def outcomes(self) -> Tensor:
        """Log-probabilities of the absence of all labels, then of their presence, (samples, n, 2 labels)."""
        return F.logsigmoid(torch.cat([-self.logits, self.logits], dim=-1))

    def class_probabilities(self) -> Tensor:
        """The chances of absence and presence, (n, 2), of a single label."""
        if self.logits.shape[-1] != 1:
            raise InvalidInputError(
                f"the prediction has {self.logits.shape[-1]} labels per input, but one class is needed: take one label "
                "by p.column(i)."
            )
        return super().class_probabilities()

    def tempered(self, temperature: float) -> BernoulliPredictive:
        """A copy whose draws have logits divided by a temperature."""
        return self._with_parameters({"logits": self.logits / temperature})

    def labels(self) -> Tensor:
        """Whether each label is more probable than not, as 0 or 1, (n, labels), or (n,) for a single label."""
        present = (self.mean > 0.5).long()
        return present.squeeze(-1) if present.shape[-1] == 1 else present

    def columns(self) -> dict[str, Tensor]:
        """As for two classes; with several labels, the probability that each is present."""
        if self.logits.shape[-1] == 1:
            return super().columns()
        p = self.rows()
        return named({"probability": p.mean}) | {"entropy": p.entropy(), "mutual_information": p.mutual_information()}
