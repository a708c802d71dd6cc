"""Functional variational Bayesian neural networks (Sun, Zhang, Shi, Grosse; ICLR 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fsvi.export import Functions
from fsvi.functions.contexts import Context
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.functions.stein import spectral_score
from fsvi.inputs import Inputs, concatenate
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.function_space import FunctionSpace, check_learnable
from fsvi.methods.kl_weight import KLWeight
from fsvi.methods.mean_field import RandomWeights, Stds, all_names, check_stds
from fsvi.methods.network_method import NetworkMethod
from fsvi.methods.parts import shared
from fsvi.networks.devices import back, in_float64
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.networks.parameters import is_dense
from fsvi.validation import check_count, check_fraction, check_positive
from fsvi.posteriors import MeanField


class FBNN(NetworkMethod):
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
    """

    prior = shared("function_space", "prior")
    context = shared("function_space", "context")
    num_context = shared("function_space", "num_context")
    kl_weight = shared("function_space", "kl_weight")

    can_compile = False

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
        super().__init__(net, likelihood)
        prior = GaussianProcess(learn=isinstance(likelihood, Gaussian)) if prior is None else prior
        check_learnable(prior, likelihood)
        self.num_samples = check_count("num_samples", num_samples, least=2)
        self.injected_noise = check_positive("injected_noise", injected_noise)
        self.fraction = check_fraction("fraction", fraction)
        self.stds = check_stds(stds, Stds(0.05))
        self.function_space = FunctionSpace(context, prior, num_context, kl_weight)
        self.weights = RandomWeights(self.stds, all_names)
        self.build(self.function_space.examined(self.network))

    @property
    def posterior(self) -> MeanField:
        """q(θ)."""
        return self.weights.posterior

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Fit the prior if it is a Gaussian process with `learn=True`."""
        self.function_space.fit_prior(x, y, self.likelihood)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood over S draws, and the weighted surrogate of the KL at the measurement
        points.
        """
        q = self.posterior
        shifts = q.shift(torch.randn(self.num_samples, *q.mean.shape, dtype=self.dtype, device=self.device))
        f = self.function_values(x, shifts)
        nll = self.likelihood.nll(f, y)
        points = self.function_space.points(x)
        with evaluating(self.net):
            f = torch.cat([f, self.function_values(points, shifts)], dim=1)
        return {
            "nll": nll,
            "kl": self.function_space.weight(self.num_data or len(x)) * self.surrogate_kl(concatenate([x, points]), f),
        }

    def function_values(self, x: Tensor, shifts: Tensor) -> Tensor:
        """The network's outputs at mean + shift, (S, n, outputs).

        Draws of a dense network are computed together, others one by one.

        Args:
            x: Inputs.
            shifts: Distances from the mean, (S, parameters).
        """
        if not is_dense(self.net):
            return self.weights.outputs(x, list(shifts))
        points = self.posterior.point_layout.views(self.posterior.point)
        draws = self.posterior.layout.views(self.posterior.mean + shifts)
        return vmap(lambda draw: self.network(x, {**draw, **points}), randomness="different")(draws)

    def surrogate_kl(self, x: Inputs, f: Tensor) -> Tensor:
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

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The network's outputs for draws of its parameters."""
        return self.draw_functions(self.weights.draws(num_samples, generator), x, batch_size)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The network's outputs for draws of its parameters."""
        return self.fixed_functions(self.weights.draws(num_samples, generator))
