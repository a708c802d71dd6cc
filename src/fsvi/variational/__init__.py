"""Distributions over a network's parameters."""

from fsvi.variational.layout import Layout
from fsvi.variational.mean_field import MeanField

__all__ = ["Layout", "MeanField"]
