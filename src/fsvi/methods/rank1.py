"""Rank-one Bayesian neural networks (Dusenberry, Jerfel, Wen, Ma, Snoek, Heller, Lakshminarayanan & Tran, 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Functions, Method
from fsvi.methods.common import KLWeight, check_kl_weight, kl_weight_value
from fsvi.methods.map import check_variance, prior_term
from fsvi.networks.calls import repeatable
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Stds, check_stds
from fsvi.posteriors.rank1 import RankOne
from fsvi.validation import check_count, check_positive, check_seed


class Rank1(Method):
    """Minimizes −1/(BM) Σ log p(y|f(x; W ∘ s rᵀ)) − 1/N log N(W; 0, prior_variance·I) + kl_weight · KL(q ‖ p).

    W are the network's own parameters, learned as by MAP. Every dense layer and convolution computes
    ((x ∘ r) Wᵀ) ∘ s + b with random factors r of its inputs and s of its outputs. Their posterior is the mixture
    q(r, s) = 1/K Σₖ N(meanₖ, diag(stdₖ²)), their prior p = N(1, prior_std²·I). The mixture's KL is replaced by the mean
    of its components' KLs, which is an upper bound.

    In training, the examples of a minibatch are assigned evenly and at random to the components, and each has its own
    draw of the factors, M times. In prediction, draws go through the components in turn, so `num_samples` there should
    be a multiple of K.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over W; None leaves it out.
        num_components: The number of components of the mixture, K.
        prior_std: The standard deviation of the factors' prior.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the evidence lower bound), or
            `fsvi.Tempered(t)` for t/N.
        num_samples: The number of draws per step, M.
        random_signs: Whether the factors start at ±1 instead of 1. This sets the components apart but needs wide
            layers, because they share W. The prior is then ½ N(1, prior_std²) + ½ N(−1, prior_std²), and the KL to the
            half where a factor starts is an upper bound on the KL to both, up to a constant.
        seed: The seed of the random signs.
        stds: How the factors' standard deviations start and learn; None is `Stds(0.05)`.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.Rank1(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=20, seed=0)
        >>> method.predict(x).mean.shape  # probabilities
        torch.Size([100, 2])
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float | None = 1.0,
        num_components: int = 4,
        prior_std: float = 0.1,
        kl_weight: KLWeight = None,
        num_samples: int = 1,
        random_signs: bool = False,
        seed: int = 0,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_variance(prior_variance)
        self.num_components = check_count("num_components", num_components)
        self.prior_std = check_positive("prior_std", prior_std)
        self.kl_weight = check_kl_weight(kl_weight)
        self.num_samples = check_count("num_samples", num_samples)
        self.random_signs = random_signs
        self.seed = check_seed(seed)
        self.stds = check_stds(stds, Stds(0.05))
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make the factors' mixture."""
        super().build(network)
        std, scale = self.stds.single(), self.stds.lr_scale
        self.factors = RankOne(self.net, self.num_components, std, self.random_signs, self.seed, scale)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood over M draws, the weighted KL of the factors, and the prior of W."""
        f = torch.stack([self._outputs(x, self._deal(len(x))) for _ in range(self.num_samples)])
        kl = kl_weight_value(self.kl_weight, self.num_data or len(x)) * self.factors.kl(self.prior_std)
        return {"nll": self.likelihood.nll(f, y), "kl": kl, **prior_term(self, len(x))}

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the factors, one for all inputs, from each component in turn."""
        components = torch.arange(num_samples, device=self.device) % self.num_components
        draws = self.factors.draw(components, generator).split(1)
        return lambda x: torch.stack([self._outputs(x, factors) for factors in draws])

    def _deal(self, num: int) -> Tensor:
        """Factors for `num` examples, (examples, factors), from components in equal shares."""
        return self.factors.draw(torch.randperm(num, device=self.device) % self.num_components)

    def _outputs(self, x: Any, factors: Tensor) -> Tensor:
        scaling = self.factors.scaling(self.net, factors)
        with repeatable(lambda: scaling):
            return self.network(x)
