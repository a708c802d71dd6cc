"""Function-space empirical Bayes (Rudner, Kapoor, Qiu, Wilson; ICML 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.contexts import Context
from fsvi.functions.priors import Induced, Prior
from fsvi.likelihoods import Likelihood
from fsvi.methods.function_space import FunctionSpace, check_learnable
from fsvi.methods.kl_weight import KLWeight
from fsvi.methods.map import PointEstimate
from fsvi.methods.parts import shared
from fsvi.networks.devices import back, in_float64
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.validation import check_positive


class FSEB(PointEstimate):
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
    """

    prior = shared("function_space", "prior")
    context = shared("function_space", "context")
    num_context = shared("function_space", "num_context")
    kl_weight = shared("function_space", "kl_weight")

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
        super().__init__(net, likelihood, prior_variance)
        prior = Induced() if prior is None else prior
        check_learnable(prior, likelihood)
        self.nugget = check_positive("nugget", nugget)
        self.function_space = FunctionSpace(context, prior, num_context, kl_weight)
        self.build(self.function_space.examined(self.network))

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Fit a Gaussian process that asks for it."""
        self.function_space.fit_prior(x, y, self.likelihood)

    def terms_without_prior(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """That of `MAP`, and the weighted negative log density of the function at context points."""
        terms = super().terms_without_prior(x, y)
        weight = self.function_space.weight(self.num_data or len(x))
        return {**terms, "function_prior": -weight * self._log_prob(self.function_space.points(x))}

    def function_log_prob(self, x_context: Any) -> Tensor:
        """log p(f(X)) of the network's present function at these points, summed over outputs, in float64."""
        return self._log_prob(self.network.arranged(self.check_inputs(x_context)))

    def _log_prob(self, x: Tensor) -> Tensor:
        """The same at points of the context, without asking the device whether they are finite."""
        with torch.no_grad():
            p = self.prior.gaussian(x).prepared(self.nugget)
        with evaluating(self.net):
            outputs = self.network(x)
        values = in_float64(outputs).reshape(1, *p.mean.shape)
        return back(replace(p, mean=torch.zeros_like(p.mean)).log_prob(values).squeeze(0), outputs)
