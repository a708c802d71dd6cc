"""Radial Bayesian neural networks (Farquhar, Osborne & Gal, 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fsvi.methods.mean_field import ParameterSpaceVI
from fsvi.variational import Radial


class RadialMFVI(ParameterSpaceVI):
    """Minimises −1/(BM) Σ log p(y|f(x; θ)) + kl_scale/N · KL(q(θ) ‖ N(0, prior_variance·I)) over radial posteriors q.

    For every parameter tensor, θ = mean + exp(log_std)·(ε/‖ε‖)·r with ε ~ N(0, I) and a single r ~ N(0, 1): however
    many parameters the tensor has, the distance of draws from the mean is that of a one-dimensional Gaussian, where a
    Gaussian's draws would keep to a far shell and leave the mean's neighbourhood out. Then

        KL = −H[q] − E_q[log p(θ)],    H[q] = Σᵢ log_stdᵢ + constant,

    the cross-entropy estimated with the M = `num_samples` draws of the likelihood. `kl_scale` below 1 is a cold
    posterior. `init_std` is the standard deviation at which single parameters start, which in a tensor of D is
    exp(log_std)/√D; `log_std` learns `log_std_lr_scale` times as fast as the means.
    """

    posterior: Radial
    family = Radial

    def kl(self, shifts: list[Tensor]) -> Tensor:
        """KL(q(θ) ‖ p(θ)) without bias: the entropy exactly, the cross-entropy by the draws mean + shift."""
        q, variance = self.posterior, self.prior_variance
        squares = torch.stack([(q.mean + shift).square().sum() for shift in shifts]).mean()
        return 0.5 * (squares / variance + q.mean.numel() * math.log(2 * math.pi * variance)) - q.entropy()
