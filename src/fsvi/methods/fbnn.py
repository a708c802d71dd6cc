"""Functional variational Bayesian neural networks (Sun, Zhang, Shi, Grosse; ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.contexts import Context
from fsvi.functions.contexts.general import context_points
from fsvi.functions.divergences import KLWeight, kl_weight_value
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.functions.stein import spectral_score
from fsvi.inputs import concatenate
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.base import network_functions
from fsvi.methods.common import FunctionSpaceMethod
from fsvi.networks.calls import evaluating
from fsvi.networks.devices import back, in_float64
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Stds, check_stds, mean_field
from fsvi.validation import check_count, check_fraction, check_positive


class FBNN(FunctionSpaceMethod):
    """Minimizes −1/(BS) Σ log p(y|f(x; θ)) + kl_weight · KL(q(f(X_M)) ‖ p(f(X_M))), X_M a set of measurement points.

    X_M is the minibatch and K points of the context. θ = mean + exp(log_std)·ε is drawn S times from a mean-field
    Gaussian q, through the real network. The KL has no closed form. Its gradient,

        ∇ KL = E_q[(∇_f log q(f) − ∇_f log p(f)) · ∇f],

    takes the posterior's score ∇_f log q from the S draws by the spectral Stein gradient estimator, separately for each
    output, and the prior's score analytically. The value of the term `kl` is −kl_weight · E_q[log p(f)] alone: the
    entropy of q enters through its gradient only.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: Where the functions are compared with the prior, besides the minibatch. `fit` needs it.
        prior: The prior over functions. None is a Gaussian process for each output; in regression it is first fitted
            to the targets, as in the authors' code.
        num_context: The number of context points, K.
        num_samples: The number of draws, S.
        injected_noise: The standard deviation of noise added to the functions of posterior and prior.
        fraction: The share of the spectrum that the Stein gradient estimator keeps.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the evidence lower bound; the authors' code
            has 1/B), or `fsvi.Tempered(t)` for t/N.
        stds: How the standard deviations start and learn; None is `Stds(0.05)`.

    Examples:
        >>> context = fsvi.contexts.Uniform(widen=1.0)
        >>> method = fsvi.FBNN(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), context)
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=2, seed=0)
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        prior: Prior | None = None,
        num_context: int = 16,
        num_samples: int = 50,
        injected_noise: float = 0.01,
        fraction: float = 0.99,
        kl_weight: KLWeight = None,
        stds: Stds | None = None,
    ) -> None:
        prior = GaussianProcess(learn=isinstance(likelihood, Gaussian)) if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight)
        self.num_samples = check_count("num_samples", num_samples, least=2)
        self.injected_noise = check_positive("injected_noise", injected_noise)
        self.fraction = check_fraction("fraction", fraction)
        self.stds = check_stds(stds, Stds(0.05))
        self.build(self._examined())

    def build(self, network: Network) -> None:
        """Make q."""
        super().build(network)
        self.posterior = mean_field(network, self.stds)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood over S draws, and the weighted surrogate of the KL at the measurement
        points.
        """
        draws = [self.posterior.draw().params for _ in range(self.num_samples)]
        functions = network_functions(self.network, {n: torch.stack([draw[n] for draw in draws]) for n in draws[0]})
        f = functions(x)
        nll = self.likelihood.nll(f, y)
        points = context_points(self.network, self.context, self.num_context, x)
        with evaluating(self.net):
            f = torch.cat([f, functions(points)], dim=1)
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        return {"nll": nll, "kl": weight * self.surrogate_kl(concatenate([x, points]), f)}

    def surrogate_kl(self, x: Any, f: Tensor) -> Tensor:
        """−1/S Σ log p(fₛ), with the gradient of KL(q ‖ p).

        Args:
            x: The measurement points.
            f: Draws of the function at `x`, (S, M, outputs).
        """
        like, f = f, in_float64(f)
        f = f + self.injected_noise * torch.randn_like(f)
        with torch.no_grad():
            p = self.prior.gaussian(x).prepared(self.injected_noise**2)
            score = spectral_score(f.permute(2, 0, 1), self.fraction).permute(1, 2, 0)
        entropy_gradient = (score * (f - f.detach())).sum((1, 2))
        return back((entropy_gradient - p.log_prob(f)).mean(), like)
