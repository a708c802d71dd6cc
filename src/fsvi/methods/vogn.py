"""Variational online Gauss–Newton (Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan, 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.common import KLWeight, Tempered, check_kl_weight, kl_weight_value
from fsvi.methods.natural_gradient import KnownGradient, NaturalGradient, points
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import MeanField, normal_kl
from fsvi.posteriors.per_example import Recording, record, weight_layers
from fsvi.validation import check_count, check_fraction, check_positive


class VOGN(Method):
    """Minimizes −1/B Σ E_q log p(y|f(x; θ)) + τ/(ρN) · KL(q(θ) ‖ N(0, I/δ)) over mean-field Gaussians q, in natural
    gradient steps, Algorithm 1 of the paper: with δ = 1/`prior_variance` and δ̃ = τδ/(ρN),

        θ = μ + σε,    ε ~ N(0, I),    σ² = 1/(ρN (s + δ̃ + γ)),
        ĝ = 1/B Σᵢ gᵢ,    ĥ = 1/B Σᵢ gᵢ²,    gᵢ = −∇ log p(yᵢ|f(xᵢ; θ)), averaged over M draws,
        m ← β₁ m + ĝ + δ̃ μ,    s ← (1 − τβ₂) s + β₂ ĥ,    μ ← μ − α m / (s + δ̃ + γ).

    With τ ≠ 1 or γ > 0 the algorithm's precision at rest, ρN(ĥ/τ + δ̃ + γ), is not exactly that of the objective. α is
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
        kl_weight: The weight of the KL in the loss, τ/(ρN): a number, None for 1/(ρN) (the evidence lower bound,
            τ = 1), or `fsvi.Tempered(t)` for τ = t.
        augmentation: ρ, how many times larger random augmentation makes the data.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.VOGN(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=5, seed=0)
        >>> method.predict(x).mean.shape  # probabilities
        torch.Size([100, 2])
    """

    _takes_weights = False
    scale: Tensor

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
        augmentation: float = 1.0,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.num_samples = check_count("num_samples", num_samples)
        self.momentum = check_fraction("momentum", momentum)
        self.scale_rate = check_positive("scale_rate", scale_rate)
        self.damping = check_positive("damping", damping, zero=True)
        self.kl_weight = check_kl_weight(kl_weight)
        self.augmentation = check_positive("augmentation", augmentation)
        if kl_weight is None or isinstance(kl_weight, Tempered):
            self._check_rates()
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Find the layers whose gradients per example have a closed form; q has the prior's variance at first."""
        super().build(network)
        self._layers = weight_layers(network.module)
        names = [name for layer in self._layers for name in layer.names]
        self.posterior = MeanField(network.module, dict.fromkeys(names, self.prior_variance**0.5))
        self.register_buffer("scale", torch.zeros_like(self.posterior.log_std, requires_grad=False))

    # Learning -------------------------------------------------------------------------------------------------------

    def begin(self, x: Any, y: Tensor) -> None:
        """Check the rates again, because the number of examples is now known."""
        self._check_rates()

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Natural gradient steps, and Adam for the points."""
        rule = {
            "momentum": self.momentum,
            "scale_rate": self.scale_rate,
            "damping": self.damping,
            "tempering": self._weight(1) * self._size(1),
            "prior": self._weight(1) / self.prior_variance,
            "size": self._size(1),
        }
        return GaussNewtonSteps(self.posterior, self.scale, points(self), lr, **rule)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL.

        In training mode, the gradient by the means is ĝ, and that by `log_std` is ĥ.
        """
        q = self.posterior
        kl = normal_kl((mean.detach() for mean in q.means().values()), q.log_std.detach(), self.prior_variance)
        terms = {"kl": self._weight(len(x)) * kl}
        if not torch.is_grad_enabled():
            f = torch.stack([self.network(x, q.draw().params) for _ in range(self.num_samples)])
            return {"nll": self.likelihood.nll(f, y), **terms}
        started = bool(self.scale.any())  # the first batch, which starts s, is evaluated at μ
        noises = [q.noise() if started else torch.zeros_like(q.log_std) for _ in range(self.num_samples)]
        draws = zip(*(self._differentiate(x, y, noise) for noise in noises), strict=True)
        nll, *gradients = (torch.stack(each).mean(0) for each in draws)
        learned = [*q.means().values(), q.log_std, *points(self)]
        return {"nll": KnownGradient.apply(nll, gradients, *learned), **terms}

    def _differentiate(self, x: Any, y: Tensor, noise: Tensor) -> list[Tensor]:
        """The negative log-likelihood at μ + σ·`noise`, ĝ by tensor, ĥ as a flat vector, and the points' gradients."""
        others = points(self)
        with torch.no_grad():
            draw = self.posterior.at(noise).params
        outputs, recording = record(self.network, draw, self._layers, x)
        nll = self.likelihood.nll(outputs, y)
        edges: list[Any] = recording.edges
        found = torch.autograd.grad(nll, [*edges, *others], allow_unused=True)
        rest = [torch.zeros_like(p) if g is None else g for g, p in zip(found[len(edges) :], others, strict=True)]
        first, second = self._moments(recording, recording.filled(found[: len(edges)]))
        return [nll.detach(), *first, self.likelihood.num_observed(y) * second, *rest]

    def _moments(self, recording: Recording, gradients: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The sum of the examples' gradients, by tensor, and of their squares; a layer that was not called has none.

        They are summed in the type of the parameters, also where the network was computed in half precision.
        """
        layout = self.posterior.layout
        zeros = layout.views(torch.zeros_like(self.scale))
        first, second = dict(zeros), dict(zeros)
        with torch.autocast(self.device.type, enabled=False):
            for total, squares in recording.moments(gradients, self.dtype):
                first |= total
                second |= squares
        return list(first.values()), layout.flatten(second)

    def _check_rates(self) -> None:
        tempering = self._weight(1) * self._size(1)
        if tempering * self.scale_rate > 1:
            raise InvalidInputError(
                f"scale_rate={self.scale_rate} times the temperature {tempering:.3g} of the KL must not be above 1."
            )

    def _size(self, num: int) -> float:
        """ρN, with N = `num` before training."""
        return self.augmentation * (self.num_data or num)

    def _weight(self, num: int) -> float:
        """τ/(ρN)"""
        return kl_weight_value(self.kl_weight, self._size(num))


class GaussNewtonSteps(NaturalGradient):
    """VOGN's update of μ and s."""

    def update(
        self, mean: Tensor, gradient: Tensor, curvature: Tensor, scale: Tensor, state: Any, group: Any
    ) -> Tensor:
        """m ← β₁ m + ĝ + δ̃ μ,  s ← (1 − τβ₂) s + β₂ ĥ,  α m / (s + δ̃ + γ)."""
        if not scale.any():
            scale.copy_(curvature)
        state["momentum"].mul_(group["momentum"]).add_(gradient).add_(mean, alpha=group["prior"])
        scale.mul_(1 - group["tempering"] * group["scale_rate"]).add_(curvature, alpha=group["scale_rate"])
        return group["lr"] * state["momentum"] / (scale + group["prior"] + group["damping"])

    def precision(self, scale: Tensor, group: Any) -> Tensor:
        """ρN (s + δ̃ + γ)"""
        return group["size"] * (scale + group["prior"] + group["damping"])
