"""Maximum a posteriori: one network, no uncertainty of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.export import Functions
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import differentiate, sum_terms
from fsvi.methods.network_method import NetworkMethod
from fsvi.networks.network import Network
from fsvi.validation import check_positive
from fsvi.variational import add_normal_gradient, negative_log_normal, prior_names


class PointEstimate(NetworkMethod):
    """A method that trains the network's own parameters θ: the loss of `MAP`, and the network as a single draw.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out.
    """

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood, prior_variance: float | None) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = None if prior_variance is None else check_positive("prior_variance", prior_variance)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Those without the prior, and the negative log prior divided by N."""
        return {**self.terms_without_prior(x, y), **self.prior_terms(dict(self.net.named_parameters()), len(x))}

    def terms_without_prior(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """All terms except the prior over θ: the negative log-likelihood.

        Args:
            x: Inputs, validated by `check_batch`.
            y: Their targets.
        """
        return {"nll": self.likelihood.nll(self.network(x), y)}

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """As in `Method`, but the gradient of the prior, which is known, is added after autograd's in one pass."""
        is_overridden = type(self).terms is not PointEstimate.terms
        if self.prior_variance is None or is_overridden:
            return super().backward(x, y, scale)
        others = dict(self.net.named_parameters())
        chosen = [others.pop(name) for name in prior_names(self.net)]
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in chosen):
            return super().backward(x, y, scale)  # hooks, such as those of padding rows, see whole gradients
        terms = self.terms_without_prior(x, y)
        differentiate(sum_terms(terms), scale)
        num_data = self.num_data or len(x)
        prior = add_normal_gradient(chosen, self.prior_variance, scale / num_data, others.values())
        return {**terms, "prior": prior / num_data}

    def prior_terms(self, parameters: Mapping[str, Tensor], num: int) -> dict[str, Tensor]:
        """The negative log prior divided by N, if there is a prior.

        Args:
            parameters: Values of the parameters, by name.
            num: Replaces N if it is not known.
        """
        if self.prior_variance is None:
            return {}
        chosen = [parameters[name] for name in prior_names(self.net)]
        return {"prior": negative_log_normal(chosen, self.prior_variance) / (self.num_data or num)}

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The outputs of the network as a single draw; `num_samples` is ignored."""
        return self.batched(self.network, x, batch_size).unsqueeze(0)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The network itself, as a single draw."""
        return self.fixed_functions([{}])


class MAP(PointEstimate):
    """Minimizes −1/B Σ log p(y|f(x; θ)) − 1/N log N(θ; 0, prior_variance·I), up to a constant.

    The scale and shift of BatchNorm have no prior.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior; None leaves the prior out: maximum likelihood.
    """

    takes_positions = True

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood, *, prior_variance: float | None = 1.0) -> None:
        super().__init__(net, likelihood, prior_variance)
        self.build(self.network)
