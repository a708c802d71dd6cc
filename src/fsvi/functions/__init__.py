"""Gaussians over function values: how parameters induce them, priors, context points, and the KL between them."""

from fsvi.functions import contexts, divergences, kernels, priors

__all__ = ["contexts", "divergences", "kernels", "priors"]
