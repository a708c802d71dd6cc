"""Generalized function-space variational inference with Gaussian-process priors (Cinquin, Bamler; UAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import HeadError
from fsvi.export import Functions
from fsvi.functions.contexts import Context
from fsvi.functions.divergences import Divergence, RegularizedKL
from fsvi.functions.linearize import Parameters, linearized_outputs
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.fsvi import FSVI, Draw, Stochastic
from fsvi.methods.kl_weight import KLWeight
from fsvi.methods.mean_field import Stds
from fsvi.networks.network import Network


class GFSVI(FSVI):
    """Variational inference over the functions of a linearized network, with a Gaussian process as the prior.

    q(θ) = N(m, S) is mean-field, and q(f) the distribution of the network linearized about its mean,

        f(X; m) + J(X)(θ − m)  ~  N(f(X; m), J(X) S J(X)ᵀ).

    Minimizes −1/B Σ E_q log p(y|f(x)) + kl_weight · D(q(f(X_C)) ‖ p(f(X_C))) with the regularized KL divergence D at a
    set X_C of context points. The expectation is estimated by M draws. Where `FSVI` draws the real network in
    likelihood and prediction, here all of it is the linearized network: what is trained is what predicts.

    D needs the whole Jacobian at the context points, so that only small networks can have all their parameters random.
    `stochastic="last_layer"` works with every network: the outputs are linear in those parameters.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: Where the functions are compared with the prior. `fit` needs it.
        prior: The prior over functions. None is `GaussianProcess()`; in regression it is first fitted to the targets.
            Other kernels: `GaussianProcess(kernel=fsvi.kernels.Matern(1.5) + fsvi.kernels.Linear())`.
        divergence: What compares posterior and prior at the context points; None is `RegularizedKL()`.
        stochastic: Which parameters are random: "all", or those of the "last_layer".
        num_context: The number of context points per set.
        num_context_sets: The number of sets; the largest divergence counts.
        num_samples: The number of draws for the likelihood, M.
        kl_weight: The weight of the divergence in the loss: a number, None for 1/N (the evidence lower bound), or
            `fsvi.Tempered(t)` for t/N.
        stds: How the standard deviations start and learn; None is `Stds()`.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        prior: Prior | None = None,
        divergence: Divergence | None = None,
        stochastic: Stochastic = "all",
        num_context: int = 24,
        num_context_sets: int = 1,
        num_samples: int = 1,
        kl_weight: KLWeight = None,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(
            net,
            likelihood,
            context,
            prior=GaussianProcess(learn=isinstance(likelihood, Gaussian)) if prior is None else prior,
            divergence=RegularizedKL() if divergence is None else divergence,
            linearize="exact",
            stochastic=stochastic,
            num_context=num_context,
            num_context_sets=num_context_sets,
            num_samples=num_samples,
            kl_weight=kl_weight,
            stds=stds,
        )

    def check_network(self, network: Network) -> None:
        """The last layer must be trainable, and independent of the features."""
        super().check_network(network)
        if network.is_tied:
            raise HeadError(f"the last layer {network.head!r} shares a parameter with an earlier layer: untie them.")

    def _function_values(self, q: Parameters, x: Any, draws: Sequence[Draw]) -> Tensor:
        """The linearized network's outputs, (M, n, outputs).

        The pass at the mean is that of training, which updates BatchNorm's statistics; the Jacobian uses them fixed.
        """
        mean = self.network(x, q.params())
        return torch.stack([mean + linearized_outputs(self.network, q, x, draw.shift)[1] for draw in draws])

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Outputs of the linearized network for draws of the parameters."""
        if not self._is_random:
            return super().function_draws(x, num_samples, generator, batch_size)
        q = self.posterior
        shifts = [q.shift(q.noise(generator)) for _ in range(num_samples)]
        return torch.stack([self.batched(partial(self._linearized, shift), x, batch_size) for shift in shifts])

    def _linearized(self, shift: Tensor, x: Tensor) -> Tensor:
        mean, change = linearized_outputs(self.network, self.posterior, x, shift)
        return mean + change

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """Outputs of the linearized network for draws of the parameters."""
        if not self._is_random:
            return super().fixed_draws(x, num_samples, generator)
        q = self.posterior
        shifts = [q.shift(q.noise(generator)).detach() for _ in range(num_samples)]
        return lambda x: torch.stack([self._linearized(shift, x) for shift in shifts])
