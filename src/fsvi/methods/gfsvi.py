"""Generalized function-space variational inference with Gaussian-process priors (Cinquin, Bamler; UAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.contexts import Context
from fsvi.functions.divergences import Divergence, RegularizedKL
from fsvi.functions.linearize import Linearization, linearized_outputs
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.base import Functions
from fsvi.methods.common import check_untied
from fsvi.methods.fsvi import FSVI
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Draw


class GFSVI(FSVI):
    """Variational inference over the functions of a linearized network, with a Gaussian process as the prior.

    q(θ) = N(m, S) is mean-field, and q(f) the distribution of the network linearized about its mean,

        f(X; m) + J(X)(θ − m)  ~  N(f(X; m), J(X) S J(X)ᵀ).

    Minimizes −1/B Σ E_q log p(y|f(x)) + kl_weight · D(q(f(X_C)) ‖ p(f(X_C))) with the regularized KL divergence D at a
    set X_C of context points. The expectation is estimated by M draws. Where `FSVI` draws the real network in
    likelihood and prediction, here all of it is the linearized network: what is trained is what predicts.

    With `linearize="exact"`, D needs the whole Jacobian at the context points, so that only small networks can have all
    their parameters random. `stochastic="last_layer"` works with every network: the outputs are linear in those.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: Where the functions are compared with the prior. `fit` needs it.
        prior: The prior over functions. None is `GaussianProcess()`; in regression it is first fitted to the targets.
            Other kernels: `GaussianProcess(kernel=fsvi.kernels.Matern(1.5) + fsvi.kernels.Linear())`.
        divergence: What compares posterior and prior at the context points; None is `RegularizedKL()`.
        linearize: As for `FSVI`.
        settings: The other arguments of `FSVI`.

    Examples:
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> net = fsvi.networks.mlp(1, (20,), 1)
        >>> prior = fsvi.priors.GaussianProcess(kernel=fsvi.kernels.Matern(1.5))
        >>> method = fsvi.GFSVI(net, fsvi.Gaussian(), fsvi.contexts.Uniform(widen=0.5), prior=prior)
        >>> history = fsvi.fit(method, (x, torch.sin(3 * x)), epochs=5, seed=0)
        >>> method.predict(x).variance.shape
        torch.Size([50, 1])
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        prior: Prior | None = None,
        divergence: Divergence | None = None,
        linearize: Linearization = "exact",
        **settings: Any,
    ) -> None:
        prior = GaussianProcess(learn=isinstance(likelihood, Gaussian)) if prior is None else prior
        divergence = RegularizedKL() if divergence is None else divergence
        super().__init__(net, likelihood, context, prior=prior, divergence=divergence, linearize=linearize, **settings)

    def build(self, network: Network) -> None:
        """The last layer must be independent of the features."""
        check_untied(network)
        super().build(network)

    def _values_at(self, x: Any, draws: Sequence[Draw]) -> Tensor:
        """The linearized network's outputs, (M, n, outputs).

        The pass at the mean is that of training, which updates BatchNorm's statistics; the Jacobian uses them fixed.
        """
        if not draws:
            return super()._values_at(x, draws)
        mean = self.network(x)
        return torch.stack([mean + linearized_outputs(self.network, draw.shift, x)[1] for draw in draws])

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """The linearized network under draws of its parameters."""
        if not self._has_random_features:
            return super().functions(num_samples, generator)
        shifts = [self.posterior.draw(generator).shift for _ in range(num_samples)]
        return lambda x: torch.stack([sum(linearized_outputs(self.network, shift, x)) for shift in shifts])  # type: ignore[misc]
