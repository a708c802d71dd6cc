"""Mean-field variational inference in parameter space (Blundell, Cornebise, Kavukcuoglu & Wierstra, 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.mean_field import ParameterSpaceVI
from fsvi.networks.network import Network
from fsvi.variational import LocalReparametrization, normal_kl


class MFVI(ParameterSpaceVI):
    """Minimises −1/(BM) Σ log p(y|f(x; θ)) + kl_scale/N · KL(q(θ) ‖ N(0, prior_variance·I)), the ELBO over −N.

    θ = mean + exp(log_std)·ε with ε ~ N(0, I) is drawn M = `num_samples` times a step; the KL has a closed form,

        KL = ½ Σᵢ [(stdᵢ² + meanᵢ²) / prior_variance − 1 + log prior_variance − 2 log_stdᵢ].

    `kl_scale` below 1 is a cold posterior, above 1 a warm one. `local_reparametrization` draws the outputs of dense
    layers and convolutions for each example instead of their weights (Kingma, Salimans & Welling, 2015): gradients
    vary less, and a step of a convolutional network costs about three times as much; prediction draws weights.

    `init_std` is where the standard deviations start; `log_std` learns `log_std_lr_scale` times as fast as the means,
    slowly by default, so that the means find the data before the KL has widened q. Where there are fewer data than
    parameters, the optimum itself is known to underfit: train less long, or choose a smaller `kl_scale`.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        prior_variance: float = 1.0,
        kl_scale: float = 1.0,
        num_samples: int = 1,
        local_reparametrization: bool = False,
        init_std: float = 0.01,
        log_std_lr_scale: float = 0.3,
    ) -> None:
        super().__init__(net, likelihood, prior_variance, kl_scale, num_samples, init_std, log_std_lr_scale)
        self.local_reparametrization = local_reparametrization

    def outputs(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The network's outputs for M draws of its weights, or of its layers' outputs, (M, n, outputs)."""
        if not self.local_reparametrization:
            return super().outputs(x, shifts)
        return torch.stack([self._local_outputs(x, self.posterior.params(shift)) for shift in shifts])

    def kl(self, shifts: list[Tensor]) -> Tensor:
        """KL(q(θ) ‖ p(θ)), exactly."""
        return normal_kl(self.posterior.mean, self.posterior.log_std, 0.0, self.prior_variance)

    def _local_outputs(self, x: Tensor, params: dict[str, Tensor]) -> Tensor:
        with LocalReparametrization(self.posterior, params):
            return self.network(x, params)
