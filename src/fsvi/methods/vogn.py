"""Variational online Gauss–Newton (Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan, 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.divergences import KLWeight
from fsvi.likelihoods import Likelihood
from fsvi.methods.natural_gradient import NaturalGradient
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import MeanField
from fsvi.posteriors.per_example import gradient_moments, record, weight_layers
from fsvi.validation import check_positive


class VOGN(NaturalGradient):
    """Minimizes −1/B Σ E_q log p(y|f(x; θ)) + τ/N · KL(q(θ) ‖ N(0, I/δ)) over mean-field Gaussians q, in natural
    gradient steps, Algorithm 1 of the paper: with δ = 1/`prior_variance` and δ̃ = τδ/N,

        θ = μ + σε,    ε ~ N(0, I),    σ² = 1/(N (s + δ̃ + γ)),
        ĝ = 1/B Σᵢ gᵢ,    ĥ = 1/B Σᵢ gᵢ²,    gᵢ = −∇ log p(yᵢ|f(xᵢ; θ)), averaged over M draws,
        m ← β₁ m + ĝ + δ̃ μ,    s ← (1 − τβ₂) s + β₂ ĥ,    μ ← μ − α m / (s + δ̃ + γ).

    With τ ≠ 1 or γ > 0 the algorithm's precision at rest, N(ĥ/τ + δ̃ + γ), is not exactly that of the objective. α is
    the learning rate. `scale`, s, starts at ĥ of the first batch at μ. `fit` always uses this update; in a loop of your
    own, step with `method.own_optimizer(lr)`.

    The weights and biases of dense layers and two-dimensional convolutions are stochastic, because their gᵢ have a
    closed form. All other parameters are points, which Adam learns at the same rate. BatchNorm uses the statistics of
    the batch, as always in training: gᵢ is the gradient through example i's own activations, and the mean of all gᵢ is
    the exact gradient.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters, 1/δ.
        num_samples: The number of draws per step, M.
        momentum: β₁.
        scale_rate: β₂, the rate at which `scale` follows the squared gradients.
        damping: γ.
        kl_weight: The weight of the KL in the loss, τ/N: a number, None for 1/N (the evidence lower bound, τ = 1), or
            `fsvi.Tempered(t)` for τ = t.

    Examples:
        >>> method = fsvi.VOGN(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=5, seed=0)
    """

    _takes_weights = False

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float = 1.0,
        num_samples: int = 1,
        momentum: float = 0.9,
        scale_rate: float = 0.01,
        damping: float = 1e-3,
        kl_weight: KLWeight = None,
    ) -> None:
        super().__init__(net, likelihood, prior_variance, num_samples, momentum, scale_rate, kl_weight)
        self.damping = check_positive("damping", damping, zero=True)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Find the layers whose gradients per example have a closed form; q has the prior's variance at first."""
        super().build(network)
        self._layers = weight_layers(network.module)
        names = [name for layer in self._layers for name in layer.names]
        self.posterior = MeanField(network.module, dict.fromkeys(names, self.prior_variance**0.5))
        self.register_buffer("scale", torch.zeros_like(self.posterior.log_std, requires_grad=False))

    def begin(self, x: Any, y: Tensor) -> None:
        """Check the rates, because the number of examples is now known."""
        if self._tau() * self.scale_rate > 1:
            raise InvalidInputError(
                f"scale_rate={self.scale_rate} times the temperature {self._tau():.3g} of the KL must not be above 1."
            )

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL.

        In training mode, the gradient by the means is ĝ, and that by `log_std` is ĥ.
        """
        q, kl = self.posterior, self._kl(len(x))
        if not torch.is_grad_enabled():
            f = torch.stack([self.network(x, q.draw().params) for _ in range(self.num_samples)])
            return {"nll": self.likelihood.nll(f, y), "kl": kl}
        started = bool(self.scale.any())  # the first batch, which starts s, is evaluated at μ
        noises = [q.noise() if started else torch.zeros_like(q.log_std) for _ in range(self.num_samples)]
        draws = zip(*(self._differentiate(x, y, noise) for noise in noises), strict=True)
        nll, *gradients = (torch.stack(each).mean(0) for each in draws)
        learned = [*q.means().values(), q.log_std, *self.points()]
        known = torch.stack([(p * gradient).sum() for p, gradient in zip(learned, gradients, strict=True)]).sum()
        return {"nll": nll + (known - known.detach()), "kl": kl}

    def _differentiate(self, x: Any, y: Tensor, noise: Tensor) -> list[Tensor]:
        """The negative log-likelihood at μ + σ·`noise`, ĝ by tensor, ĥ as a flat vector, and the points' gradients.

        Squares are summed in the type of the parameters, also where the network was computed in half precision.
        """
        points, layout = self.points(), self.posterior.layout
        with torch.no_grad():
            draw = self.posterior.at(noise).params
        outputs, recording = record(self.network, draw, self._layers, x)
        nll = self.likelihood.nll(outputs, y)
        found = torch.autograd.grad(nll, [*points, *recording.outputs], materialize_grads=True)
        gradients = [each[None] for each in found[len(points) :]]
        sums = torch.zeros(2, self.scale.numel(), dtype=self.dtype, device=self.device)
        places = [layout.views(each) for each in sums]
        with torch.autocast(self.device.type, enabled=False):
            for layer, patches, (g,) in recording.pairs(gradients, self.dtype):
                for place, part in zip(places, gradient_moments(layer, patches, g), strict=True):
                    for name, tensor in layer.tensors(part).items():
                        place[name] += tensor
        return [nll.detach(), *places[0].values(), self.likelihood.num_observed(y) * sums[1], *found[: len(points)]]

    def update(self, mean: Tensor, gradient: Tensor, curvature: Tensor, momentum: Tensor, step: int) -> Tensor:
        """m, then s and the direction of μ. `curvature` is ĥ."""
        s = self.scale if self.scale.any() else self.scale.copy_(curvature)
        momentum.mul_(self.momentum).add_(gradient).add_(mean, alpha=self._delta())
        s.mul_(1 - self._tau() * self.scale_rate).add_(curvature, alpha=self.scale_rate)
        return momentum / (s + self._delta() + self.damping)

    def precision(self) -> Tensor:
        """N (s + δ̃ + γ)"""
        return (self.num_data or 1) * (self.scale + self._delta() + self.damping)

    def _tau(self) -> float:
        return self._weight(1) * (self.num_data or 1)
