"""What methods with a prior over functions share, and which likelihoods have closed forms."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.functions.contexts.general import context_points, own_context
from fsvi.functions.divergences import KLWeight, check_kl_weight
from fsvi.functions.kernels import spread
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.likelihoods import Categorical, Gaussian, Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.validation import check_count, check_inputs, check_type

_EXAMPLES = 512
"""training inputs that a prior looks at"""


def check_trainable(network: Network) -> None:
    """Refuse a frozen last layer."""
    if any(not p.requires_grad for p in network.linear.parameters()):
        raise HeadError(f"the last layer {network.head!r} is frozen, but its parameters carry the uncertainty.")


def check_untied(network: Network, remedy: str = "untie them") -> None:
    """Refuse a last layer that is not independent of the features."""
    if network.is_tied:
        raise HeadError(
            f"the last layer {network.head!r} shares a parameter with an earlier layer, or is called twice, so it is "
            f"not independent of the features: {remedy}."
        )


def check_closed_form(method: str, likelihood: Likelihood) -> None:
    """Refuse other likelihoods than a plain `Categorical`, or a `Gaussian` with one noise per output."""
    is_gaussian = isinstance(likelihood, Gaussian) and not likelihood.heteroscedastic
    if not (is_gaussian or (isinstance(likelihood, Categorical) and likelihood.is_plain)):
        raise InvalidInputError(
            f"{method} has no closed form for this {type(likelihood).__name__}: use fsvi.Categorical() without "
            "class_weight, label_smoothing and ignore_index, or fsvi.Gaussian() without heteroscedastic noise."
        )


class FunctionSpaceMethod(Method):
    """A method with a prior over functions, which is compared with the network's functions at points of a context.

    A subclass's constructor ends with `self.build(self._examined())`.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None,
        prior: Prior,
        num_context: int,
        kl_weight: KLWeight,
    ) -> None:
        super().__init__(net, likelihood)
        check_type("prior", prior, Prior, "a prior such as fsvi.priors.Constant(variance=1.0)")
        if isinstance(prior, GaussianProcess) and prior.learn and not isinstance(likelihood, Gaussian):
            raise InvalidInputError(
                "GaussianProcess(learn=True) is fitted to the targets of a regression, which "
                f"{type(likelihood).__name__} is not for: pass likelihood=fsvi.Gaussian(...), or learn=False."
            )
        self.context, self.prior = own_context(context), copy.deepcopy(prior)
        self.num_context = check_count("num_context", num_context)
        self.kl_weight = check_kl_weight(kl_weight)

    def _examined(self) -> Network:
        """The network, with its last layer found on an example of the context if it has any before training."""
        example = getattr(self.context, "example", None)
        if example is None:
            return self.network
        try:
            return self.network.examined(check_inputs(example, self.dtype))
        except HeadError:
            raise
        except InvalidInputError as error:
            raise InvalidInputError(f"points of the context do not fit the network: {error}") from error

    def build(self, network: Network) -> None:
        """Bind the prior to the network."""
        super().build(network)
        self.prior.bind(network, getattr(self, "linearize", "jvp"))

    def begin(self, x: Any, y: Tensor) -> None:
        """Show the training data to context and prior, and detect a wrong context before the first step.

        A Gaussian process with `learn=True` is fitted to the targets. A learned noise of the likelihood keeps its
        initial value: the noise of the fitted process can be so small that the network would only learn to lower its
        own variance.
        """
        network, prior, likelihood = self.network, self.prior, self.likelihood
        if self.context is not None:
            self.context.prepare(x)
        context_points(network, self.context, self.num_context, x[:128])
        prior.prepare(network.arranged(spread(x, _EXAMPLES)))
        if isinstance(prior, GaussianProcess) and prior.learn:
            assert isinstance(likelihood, Gaussian)
            noise = likelihood.noise.mean() if likelihood.heteroscedastic else likelihood.noise
            complete = ~y.isnan().any(1)
            if not bool(complete.any()):
                raise InvalidInputError("GaussianProcess(learn=True) needs examples without missing targets.")
            is_learned = likelihood.learn_noise or likelihood.heteroscedastic
            prior.fit(network.arranged(x[complete]), y[complete], noise.expand(y.shape[1]), is_learned)
