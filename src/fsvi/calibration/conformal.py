"""Split-conformal prediction: which held-out score bounds a new one with a given chance.

Let s₁..sₙ be scores of held-out rows and s that of a new row. If all n + 1 rows are exchangeable (for instance drawn
independently from one distribution) and the score is a fixed function that has not seen them, then s is equally likely
to have any rank among the n + 1. With k = ⌈(n + 1)(1 − α)⌉ and q the k-th smallest held-out score,

    1 − α ≤ P(s ≤ q),   and without ties   P(s ≤ q) = k/(n + 1) ≤ 1 − α + 1/(n + 1).

The chance is over held-out rows and the new row together. Given the held-out rows, the coverage without ties has the
distribution Beta(k, n + 1 − k).
"""

from __future__ import annotations

import math
from fractions import Fraction

from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.validation import check_positive


def check_alpha(alpha: float) -> Fraction:
    """A chance of error strictly between 0 and 1, as the decimal fraction that was written.

    In floating point (n + 1)(1 − α) may land just above a whole number, which ⌈·⌉ would take for the next one.
    """
    if check_positive("alpha", alpha) >= 1:
        raise InvalidInputError(f"alpha={alpha!r} must lie between 0 and 1: 0.1 asks for a coverage of 90%.")
    return Fraction(str(float(alpha)))


def rows_needed(alpha: float) -> int:
    """The fewest held-out rows with which sets or intervals that miss with chance `alpha` are finite: ⌈1/α⌉ − 1."""
    return math.ceil(1 / check_alpha(alpha)) - 1


def quantile(scores: Tensor, alpha: float) -> Tensor:
    """The ⌈(n + 1)(1 − α)⌉-th smallest of sorted `scores` (n, ...).

    With too few rows it would be infinite, and the sets would hold everything: that is an error.

    Args:
        scores: The scores of n held-out examples, sorted along the first axis.
        alpha: The largest chance of a miss.
    """
    num = len(scores)
    rank = math.ceil((num + 1) * (1 - check_alpha(alpha)))
    if rank > num:
        raise InvalidInputError(
            f"alpha={alpha} needs at least {rows_needed(alpha)} held-out rows, but the calibration has {num}: "
            "give more rows or a larger alpha."
        )
    return scores[rank - 1]
