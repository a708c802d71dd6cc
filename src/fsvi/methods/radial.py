"""Radial Bayesian neural networks (Farquhar, Osborne & Gal, 2020)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.common import KLWeight, check_kl_weight, kl_weight_value
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Stds, check_stds, mean_field, negative_log_normal
from fsvi.posteriors.radial import Radial
from fsvi.validation import check_count, check_positive


class RadialMFVI(Method):
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

    _takes_positions = True
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
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.kl_weight = check_kl_weight(kl_weight)
        self.num_samples = check_count("num_samples", num_samples)
        self.stds = check_stds(stds, Stds(0.01, 0.3))
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make q."""
        super().build(network)
        self.posterior = mean_field(network, self.stds, family=Radial)  # type: ignore[assignment]

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL: its entropy is exact."""
        draws = [self.posterior.draw().params for _ in range(self.num_samples)]
        f = torch.stack([self.network(x, params) for params in draws])
        density = torch.stack([negative_log_normal(params.values(), self.prior_variance) for params in draws]).mean()
        constant = 0.5 * self.posterior.log_std.numel() * math.log(2 * math.pi * self.prior_variance)
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        return {"nll": self.likelihood.nll(f, y), "kl": weight * (density + constant - self.posterior.entropy())}
