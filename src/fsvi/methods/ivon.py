"""Improved variational online Newton (Shen, Daheim, Cong, Nickl, Marconi, Bazan, Yokota, Gurevych, Cremers, Khan &
Möllenhoff; ICML 2024)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Likelihood
from fsvi.methods.kl_weight import KLWeight, kl_weight_value
from fsvi.methods.mean_field import all_names
from fsvi.methods.natural_gradient import NaturalGradient, NaturalGradientVI
from fsvi.networks.network import Network
from fsvi.validation import check_fraction, check_positive


class IVON(NaturalGradientVI):
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
    and α the learning rate. The authors' code multiplies α by h₀ + δ, which is left to the user here. `fit` uses this
    update whatever its `optimizer`.

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
        super().__init__(net, likelihood, prior_variance, num_samples, momentum, kl_weight, all_names)
        self.scale_rate = check_fraction("scale_rate", check_positive("scale_rate", scale_rate))
        self.initial_scale = check_positive("initial_scale", initial_scale)
        self.clip = None if clip is None else check_positive("clip", clip)
        if kl_weight_value(self.kl_weight, 1) == 0:
            raise InvalidInputError(f"kl_weight={kl_weight!r} must be above 0: without a KL, IVON has no variance.")
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Start the scale."""
        super().build(network)
        with torch.no_grad():
            self.scale.fill_(self.initial_scale)

    # Learning -------------------------------------------------------------------------------------------------------

    def begin(self, x: Tensor, num_data: int) -> None:
        """Variances follow from the scale, now that the number of examples is known."""
        super().begin(x, num_data)
        self.after_step()

    def weight(self, num: int) -> float:
        """1/λ"""
        return kl_weight_value(self.kl_weight, self.num_data or num)

    def precision(self) -> Tensor:
        """λ (h + δ)"""
        return (self.scale + self._prior()).div_(self.weight(1))

    def differentiate(self, x: Tensor, y: Tensor, shift: Tensor) -> list[Tensor]:
        """The negative log-likelihood at m + `shift`, ĝ, ĥ, and the gradients of the points."""
        q = self.posterior
        theta = (q.mean + shift).detach().requires_grad_()
        outputs = self.network(x, {**q.layout.views(theta), **q.point_layout.views(q.point)})
        nll = self.likelihood.nll(outputs, y)
        wanted = [theta, *self.points()]
        gradient, *others = torch.autograd.grad(nll, wanted, allow_unused=True, materialize_grads=True)
        if q.free is not None:  # padding rows of embeddings stay: this gradient cancels that of the prior
            gradient = torch.where(q.free > 0, gradient, -self._prior() * q.mean.detach())
        return [nll.detach(), gradient, (gradient * shift).mul_(self.precision()), *others]

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Means and scale, with what their update needs, then the points."""
        natural, *points = super().parameter_groups(lr)
        settings = {"prior": self._prior(), "scale_rate": self.scale_rate, "clip": self.clip or math.inf}
        return [{**natural, **settings}, *points]

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Natural gradient steps."""
        return NewtonSteps(self.parameter_groups(lr))

    def _prior(self) -> float:
        """δ"""
        return self.weight(1) / self.prior_variance


class NewtonSteps(NaturalGradient):
    """IVON's update of m and h."""

    def update(self, mean: Tensor, scale: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """As in the docstring of `IVON`; h first."""
        assert mean.grad is not None and scale.grad is not None
        rate, prior, beta = group["scale_rate"], group["prior"], group["momentum"]
        total = scale + prior
        change = scale.grad.sub_(scale)
        scale.add_(change, alpha=rate).addcdiv_(change.square_(), total, value=0.5 * rate**2)
        torch.add(scale, prior, out=total)
        correction = 1 - beta ** float(state["step"])
        gradient = state["momentum"].lerp_(mean.grad, 1 - beta).add(mean, alpha=prior * correction)
        if group["clip"] == math.inf:
            mean.addcdiv_(gradient, total, value=-group["lr"] / correction)
            return
        step = gradient.div_(total).div_(correction).clamp_(-group["clip"], group["clip"])
        mean.sub_(step, alpha=group["lr"])
