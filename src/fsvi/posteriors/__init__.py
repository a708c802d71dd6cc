"""Distributions over a network's parameters."""

from fsvi.posteriors.mean_field import MeanField, Stds

__all__ = ["MeanField", "Stds"]
