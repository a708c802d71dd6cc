"""Referral: which predictions to keep and which to refer to an expert, so that the ones kept are reliable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsvi.calibration.calibrated import Calibration
from fsvi.calibration.conformal import check_alpha
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.checks import check_predictions, check_scores
from fsvi.metrics.detection import UNCERTAINTIES, uncertainty
from fsvi.serialization import Configurable
from fsvi.validation import check_choice, check_count, check_fraction, check_positive

_PILOT = 0.2
"""The fraction of held-out data that proposes thresholds; the rest tests them."""


class Referral:
    """A threshold on the uncertainty below which predictions are at least `target_accuracy` accurate.

    With probability `confidence` over the held-out data, the accuracy among kept inputs of the same distribution is at
    least `target_accuracy`. There is no guarantee for inputs of another distribution.

    The guarantee accounts for the choice of the threshold by split fixed-sequence testing (Angelopoulos et al. 2021,
    "Learn then Test"). A random fifth of the data proposes its own uncertainties as thresholds, and a starting point:
    the threshold whose errors are least likely under a lower accuracy. The rest of the data tests thresholds from there
    on, each more permissive than the one before, until the first one fails. The errors k among the m kept inputs must
    satisfy P(Binomial(m, 1 − target_accuracy) ≤ k) ≤ 1 − confidence.

    Args:
        p_val: Predictions on held-out data, which must not be training data.
        y_val: Their labels (n,).
        target_accuracy: The accuracy to guarantee among kept inputs.
        confidence: The probability of the guarantee.
        score: The uncertainty score; see `fsvi.metrics.uncertainty`.

    Attributes:
        threshold: Inputs that are more uncertain than this are referred.
        referred: The expected fraction of inputs referred, measured on the held-out data.
        kept_accuracy: The accuracy among kept inputs of the data that tested the threshold.

    Examples:
        >>> y = torch.arange(400) % 2
        >>> sure = torch.where(torch.arange(400) < 300, 4.0, 0.1)  # right about 300 labels, guessing the others
        >>> right = torch.where(torch.arange(400) < 300, y, torch.arange(400) // 2 % 2)
        >>> logits = sure[:, None] * torch.nn.functional.one_hot(right, 2)
        >>> p = fsvi.likelihoods.CategoricalPredictive(logits[None])
        >>> referral = fsvi.Referral(p, y, target_accuracy=0.95)
        >>> int(referral.decide(p).sum())
        300
    """

    def __init__(
        self,
        p_val: Predictive,
        y_val: Any,
        target_accuracy: float = 0.95,
        confidence: float = 0.9,
        score: str = "entropy",
    ) -> None:
        self.target_accuracy = check_fraction("target_accuracy", target_accuracy)
        self.confidence = check_fraction("confidence", confidence)
        self.score = check_choice("score", score, UNCERTAINTIES)
        scores = uncertainty(p_val, self.score).detach().cpu()
        probabilities, y, observed = check_predictions(p_val, y_val)
        scores = check_scores("uncertainty of p_val", scores[observed])
        wrong = probabilities.argmax(1) != y
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        pilot, test = order.tensor_split([max(1, int(_PILOT * len(y)))])
        self.threshold = self._choose((scores[pilot], wrong[pilot]), (scores[test], wrong[test]))
        self.referred = float((scores > self.threshold).double().mean())
        self.kept_accuracy = float((~wrong[test][scores[test] <= self.threshold]).double().mean())

    def decide(self, p: Predictive) -> Tensor:
        """Whether to keep each prediction of classes, (n,) or (n, positions...): True is keep, False is refer."""
        return uncertainty(p, self.score).double() <= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """The settings and what was learned, as plain numbers and strings."""
        return dict(vars(self))

    def __str__(self) -> str:
        return (
            f"Refer inputs with {self.score.replace('_', ' ')} above {self.threshold:.4g}, about {self.referred:.1%} "
            f"of them; those kept are at least {self.target_accuracy:.4g} accurate with confidence "
            f"{self.confidence:.4g} ({self.kept_accuracy:.4g} on held-out data)."
        )

    def _choose(self, pilot: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
        """The last threshold in the pilot's sequence before the first one that fails on the test data."""
        thresholds = pilot[0].unique()
        start = int(self._p_values(thresholds, *pilot).argmin())
        failed = self._p_values(thresholds[start:], *test) > 1 - self.confidence
        passed = int(failed.nonzero()[0]) if bool(failed.any()) else len(failed)
        if not passed:
            wrong = torch.cat([pilot[1], test[1]])
            raise InvalidInputError(
                f"no threshold on {self.score!r} is sure to keep inputs with an accuracy of {self.target_accuracy} at "
                f"confidence {self.confidence}: {len(wrong)} held-out inputs, {int(wrong.sum())} of them wrong, do not "
                "show it, so lower target_accuracy or confidence, or give more held-out data."
            )
        return float(thresholds[start + passed - 1])

    def _p_values(self, thresholds: Tensor, scores: Tensor, wrong: Tensor) -> Tensor:
        """The probability of so few errors up to each threshold, if the accuracy were just below the target."""
        from scipy.special import bdtr  # takes long to import

        ordered, order = scores.sort()
        errors = torch.cat([torch.zeros(1).long(), wrong[order].cumsum(0)])
        kept = torch.searchsorted(ordered, thresholds, right=True)
        return torch.as_tensor(bdtr(errors[kept].double().numpy(), kept.numpy(), 1 - self.target_accuracy))


class SetReferral(Configurable):
    """Keeps predictions whose conformal set is small, by default a single class, and refers the others.

    For inputs exchangeable with the calibration's held-out rows, at most a share `alpha` of *all* inputs is kept with
    the right class outside the set; for sets of one class these are the errors. The share of errors among the *kept*
    inputs alone may be larger: `Referral` bounds that one. An empty set is referred.

    Args:
        calibration: A fitted calibration that ends in `LAC` or `APS`.
        alpha: Chance that a set misses the right class.
        max_size: Largest set that is kept.
    """

    def __init__(self, calibration: Calibration, alpha: float = 0.1, max_size: int = 1) -> None:
        self.calibration = calibration
        self.alpha = float(check_alpha(alpha))
        self.max_size = check_count("max_size", max_size)

    def decide(self, p: Predictive) -> Tensor:
        """As `Referral.decide`, of predictions `p` that are not calibrated yet."""
        size = self.calibration.sets(p, self.alpha).sum(-1)
        return (size >= 1) & (size <= self.max_size)

    def __str__(self) -> str:
        kept = "a single class" if self.max_size == 1 else f"at most {self.max_size} classes"
        return (
            f"Keep inputs whose prediction set holds {kept}; at most {self.alpha:.4g} of all inputs are kept with the "
            "right class outside the set."
        )


class IntervalReferral(Configurable):
    """Keeps predictions whose conformal interval is at most `max_width` wide, and refers the others.

    For inputs exchangeable with the calibration's held-out rows, at most a share `alpha` of *all* inputs is kept with
    the target outside the interval. With several targets, all intervals have to be narrow enough, and the bound holds
    for each target.

    Args:
        calibration: A fitted calibration that ends in `ConformalIntervals`.
        max_width: Widest interval that is kept, in the units of the predictions.
        alpha: Chance that an interval misses the target.
    """

    def __init__(self, calibration: Calibration, max_width: float, alpha: float = 0.1) -> None:
        self.calibration = calibration
        self.max_width = check_positive("max_width", max_width)
        self.alpha = float(check_alpha(alpha))

    def decide(self, p: Predictive) -> Tensor:
        """As `Referral.decide`, of predictions `p` that are not calibrated yet."""
        return (self.calibration.intervals(p, self.alpha).width <= self.max_width).all(-1)

    def __str__(self) -> str:
        return (
            f"Keep inputs whose {1 - self.alpha:.4g} interval is at most {self.max_width:.4g} wide; at most "
            f"{self.alpha:.4g} of all inputs are kept with the target outside."
        )
