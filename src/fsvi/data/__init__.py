"""Toy data, and texts as numbers."""

from fsvi.data.toy import Standardize, Toy1D, oat1d, snelson, subspace, two_moons
from fsvi.data.words import Vocabulary

__all__ = [
    "Standardize",
    "Toy1D",
    "Vocabulary",
    "oat1d",
    "snelson",
    "subspace",
    "two_moons",
]
