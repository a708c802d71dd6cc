"""Function-space empirical Bayes (Rudner, Kapoor, Qiu, Wilson; ICML 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.contexts import Context
from fsvi.functions.contexts.general import context_points
from fsvi.functions.divergences import KLWeight, kl_weight_value
from fsvi.functions.priors import Induced, Prior
from fsvi.likelihoods import Likelihood
from fsvi.methods.common import FunctionSpaceMethod
from fsvi.methods.map import check_variance, prior_term
from fsvi.networks.calls import evaluating
from fsvi.networks.devices import back, in_float64
from fsvi.networks.network import Network
from fsvi.validation import check_positive


class FSEB(FunctionSpaceMethod):
    """One network with a prior over parameters and one over functions; deterministic, one pass per prediction.

    Minimizes −1/B Σ log p(y|f(x; θ)) + ‖θ‖²/(2 N prior_variance)
    − kl_weight · Σ_k log N(f_k(X_C; θ); 0, s (Φ₀Φ₀ᵀ + 11ᵀ) + nugget·I), X_C a set of context points.

    Φ₀ are the features of a frozen network at X_C and s the variance of its last layer's parameters. The first two
    terms are those of `MAP`. In the paper, the third is the likelihood of an auxiliary inference problem, whose
    posterior is an empirical prior over θ. A step costs one more pass over the context points, and one without
    gradients for Φ₀.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: The distribution of context points. `fit` needs it.
        prior: Supplies the covariance of the function values; the mean is always zero. None is `Induced()`, a randomly
            initialized network with s = 1. `Empirical(net, variance=s)` takes the features of a trained one.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out.
        num_context: The number of context points per step.
        nugget: The variance added at every context point.
        kl_weight: The weight of the log density in the loss: a number, None for 1/N, or `fsvi.Tempered(t)` for t/N.

    Examples:
        >>> context = fsvi.contexts.Uniform(widen=1.0)
        >>> method = fsvi.FSEB(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), context)
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        prior: Prior | None = None,
        prior_variance: float | None = 1.0,
        num_context: int = 24,
        nugget: float = 1e-2,
        kl_weight: KLWeight = None,
    ) -> None:
        prior = Induced() if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight)
        self.prior_variance = check_variance(prior_variance)
        self.nugget = check_positive("nugget", nugget)
        self.build(self._examined())

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The terms of `MAP`, and the weighted negative log density of the function at context points."""
        points = context_points(self.network, self.context, self.num_context, x)
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        return {
            "nll": self.likelihood.nll(self.network(x), y),
            "function_prior": -weight * self._log_prob(points),
            **prior_term(self, len(x)),
        }

    def _log_prob(self, x: Any) -> Tensor:
        """log p(f(x)) of the network's present function, summed over outputs."""
        with torch.no_grad():
            p = self.prior.gaussian(x).prepared(self.nugget)
        with evaluating(self.net):
            outputs = self.network(x)
        values = in_float64(outputs).reshape(1, *p.mean.shape)
        return back(replace(p, mean=torch.zeros_like(p.mean)).log_prob(values).squeeze(0), outputs)
