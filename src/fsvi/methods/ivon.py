"""Improved variational online Newton (Shen, Daheim, Cong, Nickl, Marconi, Bazan, Yokota, Gurevych, Cremers, Khan &
Möllenhoff; ICML 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.divergences import KLWeight, kl_weight_value
from fsvi.likelihoods import Likelihood
from fsvi.methods.natural_gradient import NaturalGradient
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Stds, mean_field
from fsvi.validation import check_fraction, check_positive


class IVON(NaturalGradient):
    """Minimizes −1/B Σ E_q log p(y|f(x; θ)) + 1/λ · KL(q(θ) ‖ N(0, prior_variance·I)) over mean-field Gaussians q.

    It takes natural gradient steps, Algorithm 1 of the paper: with ℓ the mean negative log-likelihood of the batch and
    δ = 1/(λ · prior_variance),

        θ = m + σε,    ε ~ N(0, I),    σ² = 1/(λ (h + δ)),
        ĝ = ∇ℓ(θ),    ĥ = ĝ · (θ − m)/σ², averaged over M draws,
        g ← β₁ g + (1 − β₁) ĝ,
        h ← h + ρ (ĥ − h) + ½ ρ² (h − ĥ)²/(h + δ),
        m ← m − α clip((g/(1 − β₁ᵗ) + δ m)/(h + δ)).

    By Stein's identity, E ĥ is the expected diagonal of the loss's Hessian: no gradients per example are needed, unlike
    in VOGN. The last term of h keeps h + δ positive. λ = 1/kl_weight is the effective number of examples, ρ = 1 − β₂,
    and α the learning rate. The authors' code multiplies α by h₀ + δ, which is left to the user here. `fit` always uses
    this update; in a loop of your own, step with `method.own_optimizer(lr)`.

    All trainable parameters are random except the scale and shift of BatchNorm, which Adam learns at the same rate.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters.
        num_samples: The number of draws per step, M.
        momentum: β₁.
        scale_rate: ρ, the rate at which `scale`, h, follows the estimates of the curvature.
        initial_scale: h₀, where h starts. Large values give small steps and small variances at first.
        clip: The largest step of a parameter, before it is multiplied by the learning rate; None does not limit it.
        kl_weight: The weight of the KL, 1/λ: a number, None for 1/N (the ELBO), or `fsvi.Tempered(t)` for t/N.

    Examples:
        >>> method = fsvi.IVON(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float = 1.0,
        num_samples: int = 1,
        momentum: float = 0.9,
        scale_rate: float = 1e-3,
        initial_scale: float = 0.1,
        clip: float | None = None,
        kl_weight: KLWeight = None,
    ) -> None:
        super().__init__(net, likelihood, prior_variance, num_samples, momentum, scale_rate, kl_weight)
        check_fraction("scale_rate", scale_rate)
        self.initial_scale = check_positive("initial_scale", initial_scale)
        self.clip = None if clip is None else check_positive("clip", clip)
        if kl_weight_value(self.kl_weight, 1) == 0:
            raise InvalidInputError(f"kl_weight={kl_weight!r} must be above 0: without a KL, IVON has no variance.")
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make q, with the prior's variance until there is data, and start the scale."""
        super().build(network)
        self.posterior = mean_field(network, Stds(self.prior_variance**0.5))
        self.register_buffer("scale", torch.full_like(self.posterior.log_std, self.initial_scale, requires_grad=False))

    def begin(self, x: Any, y: Tensor) -> None:
        """Variances follow from the scale, now that the number of examples is known."""
        with torch.no_grad():
            self.posterior.log_std.copy_(-0.5 * self.precision().log())

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL."""
        f = torch.stack([self.network(x, self.posterior.draw().params) for _ in range(self.num_samples)])
        return {"nll": self.likelihood.nll(f, y), "kl": self._kl(len(x))}

    def update(self, mean: Tensor, gradient: Tensor, curvature: Tensor, momentum: Tensor, step: int) -> Tensor:
        """h, then g and the direction of m. `curvature`, the gradient by `log_std`, is ĝ·(θ − m) = ĥσ²."""
        h, delta, rho = self.scale, self._delta(), self.scale_rate
        change = curvature * self.precision() - h
        h.add_(rho * change + 0.5 * rho**2 * change.square() / (h + delta))
        g = momentum.lerp_(gradient, 1 - self.momentum)
        direction = (g / (1 - self.momentum**step) + delta * mean) / (h + delta)
        return direction if self.clip is None else direction.clamp_(-self.clip, self.clip)

    def precision(self) -> Tensor:
        """λ (h + δ)"""
        return (self.scale + self._delta()) / self._weight(1)
