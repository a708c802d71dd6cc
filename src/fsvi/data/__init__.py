"""Datasets."""

from fsvi.data.toy import Standardize, Toy1D, oat1d, snelson, subspace, two_moons

__all__ = ["Standardize", "Toy1D", "oat1d", "snelson", "subspace", "two_moons"]
