"""Distributions over a network's parameters."""

from fsvi.variational.flat_vector import Layout
from fsvi.variational.gauss_newton import Curvature, Diagonal, Full, GaussNewton, Kronecker
from fsvi.variational.gaussian_prior import (
    add_normal_gradient,
    add_normal_kl_gradient,
    centred_kl,
    negative_log_normal,
    normal_kl,
    prior_names,
)
from fsvi.variational.gradient_buffer import GradientBuffer
from fsvi.variational.layer_modes import LayerMode, LocalReparametrization
from fsvi.variational.low_rank import LowRank
from fsvi.variational.mean_field import MeanField
from fsvi.variational.per_example import Recording, WeightLayer, gradient_moments, record, weight_layers
from fsvi.variational.radial import Radial
from fsvi.variational.rank1 import RankOne

__all__ = [
    "Curvature",
    "Diagonal",
    "Full",
    "GaussNewton",
    "GradientBuffer",
    "Kronecker",
    "LayerMode",
    "Layout",
    "LocalReparametrization",
    "LowRank",
    "MeanField",
    "Radial",
    "RankOne",
    "Recording",
    "WeightLayer",
    "add_normal_gradient",
    "add_normal_kl_gradient",
    "centred_kl",
    "gradient_moments",
    "negative_log_normal",
    "normal_kl",
    "prior_names",
    "record",
    "weight_layers",
]
