"""The weight of the divergence from the prior in a loss: one argument, with one meaning in every method."""

from __future__ import annotations

from typing import TypeAlias

from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable
from fsvi.validation import check_positive


class Tempered(Configurable):
    """The weight temperature/N, where N is the number of training examples.

    Temperature 1 is the evidence lower bound. A lower one gives a cold posterior, which trusts the data more; a higher
    one a warm posterior.

    Args:
        temperature: The multiple of 1/N.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = check_positive("temperature", temperature, zero=True)

    def __repr__(self) -> str:
        return f"Tempered({self.temperature!r})"


KLWeight: TypeAlias = float | Tempered | None
"""A number is the weight in the loss per example; None is 1/N, the evidence lower bound; `Tempered(t)` is t/N."""


def check_kl_weight(kl_weight: KLWeight) -> KLWeight:
    """Check a weight that a user gave."""
    if kl_weight is None or isinstance(kl_weight, Tempered):
        return kl_weight
    if isinstance(kl_weight, bool) or not isinstance(kl_weight, (int, float)):
        raise InvalidInputError(
            f"kl_weight={kl_weight!r} must be a number, None for 1/N, or fsvi.Tempered(t) for t/N, N training examples."
        )
    return check_positive("kl_weight", kl_weight, zero=True)


def kl_weight_value(kl_weight: KLWeight, num_data: float) -> float:
    """The factor of the divergence in the loss per example.

    Args:
        kl_weight: The weight, as the user gave it.
        num_data: The number of training examples, N.
    """
    if kl_weight is None:
        return 1 / num_data
    return kl_weight.temperature / num_data if isinstance(kl_weight, Tempered) else kl_weight


def temperature(kl_weight: KLWeight, num_data: float) -> float:
    """The same weight as a multiple of 1/N, the weight in the evidence lower bound.

    Args:
        kl_weight: The weight, as the user gave it.
        num_data: The number of training examples, N.
    """
    if kl_weight is None:
        return 1.0
    return kl_weight.temperature if isinstance(kl_weight, Tempered) else kl_weight * num_data
