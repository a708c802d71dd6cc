"""Mean-field variational inference in parameter space (Blundell, Cornebise, Kavukcuoglu & Wierstra, 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.base import differentiate
from fsvi.methods.kl_weight import KLWeight, kl_weight_value
from fsvi.methods.mean_field import ParameterSpaceVI, Stds
from fsvi.networks.checkpoints import repeatable
from fsvi.networks.network import Network
from fsvi.variational import GradientBuffer, LocalReparametrization, add_normal_kl_gradient, normal_kl


class MFVI(ParameterSpaceVI):
    """Minimizes −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · KL(q(θ) ‖ N(0, prior_variance·I)).

    θ = mean + exp(log_std)·ε with ε ~ N(0, I) is drawn M times per step; the KL has a closed form,

        KL = ½ Σᵢ [(stdᵢ² + meanᵢ²) / prior_variance − 1 + log prior_variance − 2 log_stdᵢ].

    Where there are fewer data than parameters, the optimum itself is known to underfit: train for fewer epochs, or
    lower `kl_weight`.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the evidence lower bound), or
            `fsvi.Tempered(t)` for t/N: a cold posterior with t below 1, a warm one above.
        num_samples: The number of draws per step, M.
        local_reparametrization: Whether to draw the outputs of dense layers and convolutions for each example instead
            of their weights (Kingma, Salimans & Welling, 2015). Gradients vary less, and a step of a convolutional
            network costs about three times as much. Prediction draws weights.
        stds: How the standard deviations start and learn; None is `Stds(0.01, 0.3)`. They learn slowly, so that the
            means find the data before the KL has widened q.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float = 1.0,
        kl_weight: KLWeight = None,
        num_samples: int = 1,
        local_reparametrization: bool = False,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(net, likelihood, prior_variance, kl_weight, num_samples, stds)
        self.local_reparametrization = local_reparametrization

    def outputs(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The network's outputs for M draws of its weights, or of its layers' outputs, (M, n, outputs)."""
        if not self.local_reparametrization:
            return super().outputs(x, shifts)
        return torch.stack([self._local_outputs(x, self.posterior.params(shift)) for shift in shifts])

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """As in `Method`, but gradients of the flat vectors are summed by a `GradientBuffer`, and that of the KL has a
        closed form.
        """
        if self.local_reparametrization:
            return super().backward(x, y, scale)
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        with GradientBuffer(self.posterior) as q:
            std = q.log_std.detach().exp()
            shifts = [q.shift(q.noise(), std) for _ in range(self.num_samples)]
            nll = self.likelihood.nll(torch.stack([self.network(x, q.params(shift)) for shift in shifts]), y)
            differentiate(nll, scale)
            nll = nll.detach()
            q.add_draws()
            kl = add_normal_kl_gradient(q.mean, q.log_std, std.square_(), self.prior_variance, scale * weight)
        return {"nll": nll, "kl": weight * kl}

    def kl(self, shifts: list[Tensor]) -> Tensor:
        """KL(q(θ) ‖ p(θ)), exactly."""
        return normal_kl(self.posterior.mean, self.posterior.log_std, 0.0, self.prior_variance)

    def _local_outputs(self, x: Tensor, params: dict[str, Tensor]) -> Tensor:
        mode = LocalReparametrization(self.posterior, params)
        with repeatable(lambda: mode):
            return self.network(x, params)
