"""Variational Bayesian last layers (Harrison, Willes, Snoek; ICLR 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.functions.divergences import KLWeight, check_kl_weight, kl_weight_value
from fsvi.likelihoods import Categorical, Likelihood
from fsvi.methods.base import Functions, Method
from fsvi.methods.common import check_closed_form, check_trainable, check_untied
from fsvi.methods.map import check_variance
from fsvi.networks.devices import normal
from fsvi.networks.network import Network
from fsvi.posteriors.dense import DenseGaussian
from fsvi.posteriors.mean_field import Stds, check_stds, negative_log_normal, prior_names
from fsvi.validation import check_positive


class VBLL(Method):
    """One network with a Gaussian over its last layer, trained by a bound in closed form: no draw, one pass.

    Minimizes −1/B Σ bound(x, y) + kl_weight · Σ_k KL(q(w_k) ‖ N(0, prior_variance·I)) over the feature layers and over
    q(W) = Π_k N(w̄_k, S_k) with dense S_k. With φ the features and a one for the bias, the bound is

        classes:       w̄_yᵀφ − log Σ_k exp(w̄_kᵀφ + ½ φᵀS_kφ)  ≤  E_q log p(y|Wφ), by Jensen's inequality;
        real targets:  log N(y; w̄ᵀφ, σ²) − φᵀSφ / (2σ²)  =  E_q log N(y; wᵀφ, σ²), exactly.

    The feature layers have a Gaussian prior as in `MAP`. The noise σ is the likelihood's, fixed or learned; the paper's
    prior over it is left out. Predictions draw W: all draws share one pass through the feature layers.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: `fsvi.Categorical()`, or `fsvi.Gaussian()` with one noise per output.
        prior_variance: The variance of the last layer's prior.
        feature_variance: The variance of the Gaussian prior over the feature layers; None leaves it out.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the ELBO), or `fsvi.Tempered(t)` for t/N.
        stds: How the last layer's standard deviations start and learn; None is `Stds()`.

    Examples:
        >>> method = fsvi.VBLL(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float = 1.0,
        feature_variance: float | None = 1.0,
        kl_weight: KLWeight = None,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(net, likelihood)
        check_closed_form("VBLL", likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.feature_variance = check_variance(feature_variance)
        self.kl_weight = check_kl_weight(kl_weight)
        self.stds = check_stds(stds, Stds())
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make q. The last layer must be trainable, and independent of the features."""
        check_trainable(network)
        check_untied(network)
        super().build(network)
        std = self.stds.initial(network.head_names, network)[network.head_names[0]]
        self.last_layer = DenseGaussian(self.means().detach(), std, self.stds.lr_scale)

    def means(self) -> Tensor:
        """w̄, (outputs, inputs), which are the network's own parameters."""
        linear = self.network.linear
        weight = linear.weight.flatten(1)
        return weight if linear.bias is None else torch.cat([weight, linear.bias[:, None]], dim=1)

    def inputs(self, features: Tensor) -> Tensor:
        """φ, what is multiplied by w_k: the features, and a one where there is a bias."""
        return features if self.network.linear.bias is None else F.pad(features, (0, 1), value=1.0)

    def variances(self, features: Tensor) -> Tensor:
        """φᵀ S_k φ, the variance of output k at every input, (n, outputs)."""
        return torch.einsum("nr,krc->nkc", self.inputs(features), self.last_layer.factors()).square().sum(-1)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The bound on the expected negative log-likelihood, the weighted KL, and the prior of the feature layers."""
        features, outputs = self.network.with_features(x)
        num_data = self.num_data or len(x)
        terms = {
            "nll": expected_nll(self.likelihood, outputs, self.variances(features), y),
            "kl": kl_weight_value(self.kl_weight, num_data) * self.last_layer.kl(self.means(), self.prior_variance),
        }
        parameters, head = dict(self.net.named_parameters()), self.network.head_names
        layers = [parameters[name] for name in prior_names(self.net) if name not in head]
        if self.feature_variance is not None and layers:
            terms["prior"] = negative_log_normal(layers, self.feature_variance) / num_data
        return terms

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Outputs for draws of the last layer; one pass through the feature layers serves all of them."""
        means = self.means()
        noise = normal((num_samples, *means.shape), generator, means.dtype, means.device)
        weights = self.last_layer.draws(means, noise)
        return lambda x: torch.einsum("nr,skr->snk", self.inputs(self.network.features(x)), weights)


def expected_nll(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """The mean over inputs of E −log p(y|f) for independent outputs f ~ N(mean, variance), or an upper bound on it.

    It needs the likelihood's own `nll` only. For classes, log E exp(f_k) is mean + ½ variance, so the bound is `nll`
    there plus ½ variance of the label. A Gaussian's `nll` is quadratic in f, so two points give its expectation.
    """
    if isinstance(likelihood, Categorical):
        of_label = (y * variance).sum(1) if y.is_floating_point() else variance.gather(1, y[:, None]).squeeze(1)
        return likelihood.nll(mean + 0.5 * variance, y) + likelihood.average(0.5 * of_label)
    std = (variance + torch.finfo(variance.dtype).tiny).sqrt()
    return likelihood.nll(torch.stack([mean - std, mean + std]), y)
