"""Gaussians over function values: how parameters induce them, priors, context points, and the KL between them."""

from fsvi.functions import contexts, divergences, kernels, priors
from fsvi.functions.divergences import diagonal_kl, gaussian_kl
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.linearize import LINEARIZERS, Linearization, Linearizer

__all__ = [
    "LINEARIZERS",
    "FunctionGaussian",
    "Linearization",
    "Linearizer",
    "contexts",
    "diagonal_kl",
    "divergences",
    "gaussian_kl",
    "kernels",
    "priors",
]
