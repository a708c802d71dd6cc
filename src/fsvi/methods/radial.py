"""Radial Bayesian neural networks (Farquhar, Osborne & Gal, 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.common import KLWeight
from fsvi.methods.mfvi import MFVI
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Draw, Stds, negative_log_normal
from fsvi.posteriors.radial import Radial


class RadialMFVI(MFVI):
    """Minimizes −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · KL(q(θ) ‖ N(0, prior_variance·I)) over radial posteriors q.

    For every parameter tensor, θ = mean + exp(log_std)·(ε/‖ε‖)·r with ε ~ N(0, I) and a single r ~ N(0, 1). In any
    dimension, the distance of draws from the mean is that of a one-dimensional Gaussian, while a Gaussian's draws would
    stay on a distant shell and never come near the mean. Then

        KL = −H[q] − E_q[log p(θ)],    H[q] = Σᵢ log_stdᵢ + constant,

    with the cross-entropy estimated from the M draws of the likelihood.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the evidence lower bound), or
            `fsvi.Tempered(t)` for t/N.
        num_samples: The number of draws per step, M.
        stds: How the standard deviations of single parameters start, which in a tensor of D are exp(log_std)/√D, and
            how they learn; None is `Stds(0.01, 0.3)`.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.RadialMFVI(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=20, seed=0)
        >>> method.predict(x).mean.shape  # probabilities
        torch.Size([100, 2])
    """

    _family = Radial
    posterior: Radial

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float = 1.0,
        kl_weight: KLWeight = None,
        num_samples: int = 1,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(
            net, likelihood, prior_variance=prior_variance, kl_weight=kl_weight, num_samples=num_samples, stds=stds
        )

    def _kl(self, draws: Sequence[Draw]) -> Tensor:
        """The entropy is exact."""
        densities = [negative_log_normal(draw.params.values(), self.prior_variance) for draw in draws]
        constant = 0.5 * self.posterior.log_std.numel() * math.log(2 * math.pi * self.prior_variance)
        return torch.stack(densities).mean() + constant - self.posterior.entropy()
