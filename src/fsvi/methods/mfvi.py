"""Mean-field variational inference in parameter space (Blundell, Cornebise, Kavukcuoglu & Wierstra, 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.divergences import KLWeight, check_kl_weight, kl_weight_value
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Draw, MeanField, Stds, check_stds, mean_field, normal_kl
from fsvi.validation import check_count, check_positive


class MFVI(Method):
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
        stds: How the standard deviations start and learn; None is `Stds(0.01, 0.3)`. They learn slowly, so that the
            means find the data before the KL has widened q.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MFVI(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=20, seed=0)
        >>> method.predict(x).mean.shape  # probabilities
        torch.Size([100, 2])
    """

    _takes_positions = True
    _family: type[MeanField] = MeanField

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
        self.posterior = mean_field(network, self.stds, family=self._family)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL."""
        draws = [self.posterior.draw() for _ in range(self.num_samples)]
        f = torch.stack([self.network(x, draw.params) for draw in draws])
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        return {"nll": self.likelihood.nll(f, y), "kl": weight * self._kl(draws)}

    def _kl(self, draws: Sequence[Draw]) -> Tensor:
        return normal_kl(self.posterior.means().values(), self.posterior.log_std, self.prior_variance)
