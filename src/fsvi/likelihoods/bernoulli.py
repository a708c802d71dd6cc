"""Labels that are present or absent."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import NumberLikelihood
from fsvi.predictive import BernoulliPredictive


class Bernoulli(NumberLikelihood):
    """Labels of 0 and 1, one per output of the network; the outputs are logits of 1.

    With one output it is a classifier of two classes with the likelihood of `Categorical` and outputs (0, f). With
    several, labels are independent given the outputs, and any number of them may be present. Targets may be
    probabilities. NaN is a label that is unknown.
    """

    is_numeric = False
    has_probit = True

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Labels as floats (n, outputs)."""
        y = super().check_targets(y, num_outputs)
        if bool(((y < 0) | (y > 1)).any()):
            low, high = y.nan_to_num(0.5).min(), y.nan_to_num(0.5).max()
            raise InvalidInputError(f"labels lie in {low:.4g}..{high:.4g}; Bernoulli needs 0, 1 or probabilities.")
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
