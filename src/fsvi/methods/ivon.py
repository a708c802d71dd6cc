"""Improved variational online Newton (Shen, Daheim, Cong, Nickl, Marconi, Bazan, Yokota, Gurevych, Cremers, Khan &
Möllenhoff; ICML 2024)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.common import KLWeight, check_kl_weight, kl_weight_value
from fsvi.methods.natural_gradient import NaturalGradient, points
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Stds, mean_field, normal_kl
from fsvi.validation import check_count, check_fraction, check_positive


class IVON(Method):
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
        kl_weight: The weight of the KL in the loss, 1/λ: a number, None for 1/N (the evidence lower bound), or
            `fsvi.Tempered(t)` for t/N.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.IVON(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=20, seed=0)
        >>> method.predict(x).mean.shape  # probabilities
        torch.Size([100, 2])
    """

    scale: Tensor

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
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.num_samples = check_count("num_samples", num_samples)
        self.momentum = check_fraction("momentum", momentum)
        self.scale_rate = check_fraction("scale_rate", check_positive("scale_rate", scale_rate))
        self.initial_scale = check_positive("initial_scale", initial_scale)
        self.clip = None if clip is None else check_positive("clip", clip)
        self.kl_weight = check_kl_weight(kl_weight)
        if kl_weight_value(self.kl_weight, 1) == 0:
            raise InvalidInputError(f"kl_weight={kl_weight!r} must be above 0: without a KL, IVON has no variance.")
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make q, with the prior's variance until there is data, and start the scale."""
        super().build(network)
        self.posterior = mean_field(network, Stds(self.prior_variance**0.5))
        self.register_buffer("scale", torch.full_like(self.posterior.log_std, self.initial_scale, requires_grad=False))

    # Learning -------------------------------------------------------------------------------------------------------

    def begin(self, x: Any, y: Tensor) -> None:
        """Variances follow from the scale, now that the number of examples is known."""
        with torch.no_grad():
            precision = (self.scale + self._weight(1) / self.prior_variance) / self._weight(1)
            self.posterior.log_std.copy_(-0.5 * precision.log())

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Natural gradient steps, and Adam for the points."""
        weight = self._weight(1)
        rule = {"momentum": self.momentum, "scale_rate": self.scale_rate, "clip": self.clip or math.inf}
        rule |= {"prior": weight / self.prior_variance, "weight": weight}
        return NewtonSteps(self.posterior, self.scale, points(self), lr, **rule)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL, whose gradient the update knows."""
        q = self.posterior
        f = torch.stack([self.network(x, q.draw().params) for _ in range(self.num_samples)])
        kl = normal_kl((mean.detach() for mean in q.means().values()), q.log_std.detach(), self.prior_variance)
        return {"nll": self.likelihood.nll(f, y), "kl": self._weight(len(x)) * kl}

    def _weight(self, num: int) -> float:
        """1/λ"""
        return kl_weight_value(self.kl_weight, self.num_data or num)


class NewtonSteps(NaturalGradient):
    """IVON's update of m and h."""

    def update(
        self, mean: Tensor, gradient: Tensor, curvature: Tensor, scale: Tensor, state: Any, group: Any
    ) -> Tensor:
        """As in the docstring of `IVON`; h first. The gradient by `log_std` is ĝ·(θ − m), and ĥ that divided by σ²."""
        rate, prior, beta = group["scale_rate"], group["prior"], group["momentum"]
        change = curvature * self.precision(scale, group) - scale
        scale.add_(rate * change + 0.5 * rate**2 * change.square() / (scale + prior))
        correction = 1 - beta ** float(state["step"])
        average = state["momentum"].lerp_(gradient, 1 - beta) / correction
        step = (average + prior * mean) / (scale + prior)
        return group["lr"] * step.clamp_(-group["clip"], group["clip"])

    def precision(self, scale: Tensor, group: Any) -> Tensor:
        """λ (h + δ)"""
        return (scale + group["prior"]) / group["weight"]
