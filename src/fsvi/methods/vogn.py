"""Variational online Gauss–Newton (Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota & Khan, 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Likelihood
from fsvi.methods.kl_weight import KLWeight, Tempered, temperature
from fsvi.methods.natural_gradient import NaturalGradient, NaturalGradientVI
from fsvi.networks.network import Network
from fsvi.validation import check_positive
from fsvi.posteriors import Recording, record, weight_layers


class VOGN(NaturalGradientVI):
    """Minimizes −1/B Σ E_q log p(y|f(x; θ)) + τ/(ρN) · KL(q(θ) ‖ N(0, I/δ)) over mean-field Gaussians q, in natural
    gradient steps, Algorithm 1 of the paper: with δ = 1/`prior_variance` and δ̃ = τδ/(ρN),

        θ = μ + σε,    ε ~ N(0, I),    σ² = 1/(ρN (s + δ̃ + γ)),
        ĝ = 1/B Σᵢ gᵢ,    ĥ = 1/B Σᵢ gᵢ²,    gᵢ = −∇ log p(yᵢ|f(xᵢ; θ)), averaged over M draws,
        m ← β₁ m + ĝ + δ̃ μ,    s ← (1 − τβ₂) s + β₂ ĥ,    μ ← μ − α m / (s + δ̃ + γ).

    With τ ≠ 1 or γ > 0 the algorithm's precision at rest, ρN(ĥ/τ + δ̃ + γ), is not exactly that of the objective. α is
    the learning rate. `scale`, s, starts at ĥ of the first batch at μ. `fit` always uses this update.

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
    """

    takes_weights = False

    can_compile = False

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
        super().__init__(net, likelihood, prior_variance, num_samples, momentum, kl_weight, _weight_layer_names)
        self.scale_rate = check_positive("scale_rate", scale_rate)
        self.damping = check_positive("damping", damping, zero=True)
        self.augmentation = check_positive("augmentation", augmentation)
        if kl_weight is None or isinstance(kl_weight, Tempered):
            self._check_rates(1)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Find the layers whose gradients per example have a closed form."""
        super().build(network)
        self._layers = weight_layers(self.net)
        self._has_started = False  # whether `scale` is known to have a value

    # Learning -------------------------------------------------------------------------------------------------------

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """Start the scale at the first batch."""
        if not self._has_started:
            self._has_started = bool(self.scale.any())
        if not self._has_started:
            self._start(x, y)
        return super().backward(x, y, scale)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Means and scale, with what their update needs, then the points."""
        natural, *points = super().parameter_groups(lr)
        settings = {
            "prior": self._prior(1),
            "scale_rate": self.scale_rate,
            "damping": self.damping,
            "tempering": self._temperature(1),
        }
        return [{**natural, **settings}, *points]

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Natural gradient steps."""
        return GaussNewtonSteps(self.parameter_groups(lr))

    def set_by_first_batch(self) -> list[Tensor]:
        """s."""
        return [self.scale]

    def precision(self) -> Tensor:
        """ρN (s + δ̃ + γ)"""
        return self._size(1) * (self.scale + self._prior(1) + self.damping)

    def weight(self, num: int) -> float:
        """τ/(ρN)"""
        return self._temperature(num) / self._size(num)

    def begin(self, x: Tensor, num_data: int) -> None:
        """Check the rates again, because the number of examples is now known."""
        super().begin(x, num_data)
        self._check_rates(num_data)

    def _check_rates(self, num: int) -> None:
        tempering = self._temperature(num)
        if tempering * self.scale_rate > 1:
            raise InvalidInputError(
                f"scale_rate={self.scale_rate} times the temperature {tempering:.3g} of the KL must not be above 1."
            )

    def _temperature(self, num: int) -> float:
        """τ"""
        return temperature(self.kl_weight, self._size(num))

    def _start(self, x: Tensor, y: Tensor) -> None:
        """s = ĥ at μ; non-finite batches are reported by the step."""
        _, _, squares, *_ = self.differentiate(x, y, torch.zeros_like(self.scale))
        if bool(squares.isfinite().all()):
            with torch.no_grad():
                self.scale.copy_(squares)
            self._has_started = True
            self.after_step()

    def _size(self, num: int) -> float:
        """ρN, with N = `num` before training."""
        return self.augmentation * (self.num_data or num)

    def _prior(self, num: int) -> float:
        """δ̃"""
        return self._temperature(num) / (self.prior_variance * self._size(num))

    def differentiate(self, x: Tensor, y: Tensor, shift: Tensor) -> list[Tensor]:
        """The negative log-likelihood at μ + `shift`, ĝ, ĥ, and the gradients of the points."""
        q = self.posterior
        params = {**q.layout.views((q.mean + shift).detach()), **q.point_layout.views(q.point)}
        outputs, recording = record(self.network, params, self._layers, x)
        nll = self.likelihood.nll(outputs, y)
        edges: list[Any] = recording.edges
        points = self.points()
        found = torch.autograd.grad(nll, [*edges, *points], allow_unused=True)
        gradients = recording.filled(found[: len(edges)])
        others = [torch.zeros_like(p) if g is None else g for g, p in zip(found[len(edges) :], points, strict=True)]
        return [nll.detach(), *self._moments(recording, gradients, self.likelihood.num_observed(y)), *others]

    def _moments(self, recording: Recording, gradients: Sequence[Tensor], num: int | Tensor) -> tuple[Tensor, Tensor]:
        """ĝ and ĥ from gradients of the batch's mean, flat; a layer that was not called has none.

        They are summed in the type of the parameters, also where the network was computed in half precision.
        """
        layout = self.posterior.layout
        zeros = layout.views(torch.zeros_like(self.scale))
        first, second = dict(zeros), dict(zeros)
        with torch.autocast(self.device.type, enabled=False):
            for total, squares in recording.moments(gradients, self.dtype):
                first |= total
                second |= squares
        return layout.flatten(first), num * layout.flatten(second)


def _weight_layer_names(network: Network) -> list[str]:
    """The weights and biases of layers whose gradients per example have a closed form."""
    return [name for layer in weight_layers(network.module) for name in layer.names]


class GaussNewtonSteps(NaturalGradient):
    """VOGN's update of μ and s."""

    def update(self, mean: Tensor, scale: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """m ← β₁ m + ĝ + δ̃ μ,  s ← (1 − τβ₂) s + β₂ ĥ,  μ ← μ − α m / (s + δ̃ + γ)."""
        assert mean.grad is not None and scale.grad is not None
        state["momentum"].mul_(group["momentum"]).add_(mean.grad).add_(mean, alpha=group["prior"])
        scale.mul_(1 - group["tempering"] * group["scale_rate"]).add_(scale.grad, alpha=group["scale_rate"])
        mean.addcdiv_(state["momentum"], scale + group["prior"] + group["damping"], value=-group["lr"])
