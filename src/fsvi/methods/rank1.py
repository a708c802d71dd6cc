"""Rank-one Bayesian neural networks (Dusenberry, Jerfel, Wen, Ma, Snoek, Heller, Lakshminarayanan & Tran, 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.export import Functions
from fsvi.likelihoods import Likelihood
from fsvi.methods.drawing import Draw
from fsvi.methods.kl_weight import KLWeight, check_kl_weight, kl_weight_value
from fsvi.methods.map import PointEstimate
from fsvi.methods.mean_field import Stds, check_stds
from fsvi.networks.checkpoints import repeatable
from fsvi.networks.network import Network
from fsvi.networks.shared_start import SharedStart
from fsvi.validation import check_count, check_positive, check_seed
from fsvi.posteriors import RankOne


class Rank1(PointEstimate):
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
    """

    can_compile = False

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
        super().__init__(net, likelihood, prior_variance)
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
        self.factors = RankOne(self.net, self.num_components, self.stds.single(), self.random_signs, self.seed)

    def terms_without_prior(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood over M draws, and the weighted KL of the factors."""
        outputs = torch.stack([self._outputs(x, self._deal(len(x))) for _ in range(self.num_samples)])
        kl = kl_weight_value(self.kl_weight, self.num_data or len(x)) * self.factors.kl(self.prior_std)
        return {"nll": self.likelihood.nll(outputs, y), "kl": kl}

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Draws of the factors, from each component in turn."""
        return self.evaluate(map(self._draw, self._in_turn(num_samples, generator)), x, batch_size)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the factors, from each component in turn."""
        draws = self._in_turn(num_samples, generator)
        return lambda x: torch.stack([self._outputs(x, factors) for factors in draws])

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Everything at `lr` except the factors' `log_std`, which has its own scale."""
        log_std = self.factors.log_std
        others = [p for p in self.parameters() if p.requires_grad and p is not log_std]
        return [{"params": others, "lr": lr}, {"params": [log_std], "lr": self.stds.lr_scale * lr}]

    def _deal(self, num: int) -> Tensor:
        """Factors for `num` examples, (examples, factors), from components in equal shares."""
        return self.factors.draw(torch.randperm(num, device=self.device) % self.num_components)

    def _in_turn(self, num: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Factors for all inputs together, (1, factors) each, from the components in turn."""
        components = torch.arange(num, device=self.device) % self.num_components
        return self.factors.draw(components, generator).split(1)

    def _draw(self, factors: Tensor) -> Draw:
        scaling = self.factors.scaling(self.net, factors)

        def function(x: Any, start: SharedStart) -> Tensor:
            start.watch(scaling.factors)
            with scaling:
                return self.network(x)

        return Draw(function, factors.numel)

    def _outputs(self, x: Tensor, factors: Tensor) -> Tensor:
        scaling = self.factors.scaling(self.net, factors)
        with repeatable(lambda: scaling):
            return self.network(x)
