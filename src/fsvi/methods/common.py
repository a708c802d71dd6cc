"""What methods share: the weight of a divergence; context, prior and points of methods with a prior over functions."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeAlias

from torch import Tensor, nn

from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.functions.kernels import spread
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.inputs import Inputs, describe_inputs, is_structured, signature
from fsvi.likelihoods import Categorical, Gaussian, Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.serialization import Configurable
from fsvi.validation import check_count, check_inputs, check_positive, check_type

_EXAMPLES = 512
"""training inputs that a prior looks at"""
_POSITIONS = 4
"""context points per context input, where points are positions of an input's outputs"""


class Tempered(Configurable):
    """The weight temperature/N, where N is the number of training examples.

    Temperature 1 is the evidence lower bound. A lower one gives a cold posterior, which trusts the data more; a higher
    one a warm posterior.

    Args:
        temperature: The multiple of 1/N.

    Examples:
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MFVI(net, fsvi.Categorical(), kl_weight=fsvi.Tempered(0.1))
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = check_positive("temperature", temperature, zero=True)

    def __repr__(self) -> str:
        return f"Tempered({self.temperature!r})"


KLWeight: TypeAlias = float | Tempered | None
"""A number is the weight in the loss per example; None is 1/N, the evidence lower bound; `Tempered(t)` is t/N."""


def check_kl_weight(kl_weight: KLWeight) -> KLWeight:
    """Check a weight that a user gave."""
    if kl_weight is None or isinstance(kl_weight, Tempered):
        return kl_weight
    if isinstance(kl_weight, bool) or not isinstance(kl_weight, (int, float)):
        raise InvalidInputError(
            f"kl_weight={kl_weight!r} must be a number, None for 1/N, or fsvi.Tempered(t) for t/N, N training examples."
        )
    return check_positive("kl_weight", kl_weight, zero=True)


def kl_weight_value(kl_weight: KLWeight, num_data: float) -> float:
    """The factor of the divergence in the loss per example, with N = `num_data` training examples."""
    if kl_weight is None:
        return 1 / num_data
    return kl_weight.temperature / num_data if isinstance(kl_weight, Tempered) else kl_weight


def check_closed_form(method: str, likelihood: Likelihood) -> None:
    """Refuse other likelihoods than a plain `Categorical`, or a `Gaussian` with one noise per output."""
    is_gaussian = isinstance(likelihood, Gaussian) and not likelihood.heteroscedastic
    if not (is_gaussian or (isinstance(likelihood, Categorical) and likelihood.is_plain)):
        raise InvalidInputError(
            f"{method} has no closed form for this {type(likelihood).__name__}: use fsvi.Categorical() without "
            "class_weight, label_smoothing and ignore_index, or fsvi.Gaussian() without heteroscedastic noise."
        )


def own_context(context: Context | None) -> Context | None:
    """A copy of the user's context; None where it is not known yet, as in a file without data."""
    if context is None:
        return None
    check_type("context", context, Context, "a context such as fsvi.contexts.Dataset(tensor)")
    return copy.deepcopy(context)


def context_points(network: Network, context: Context | None, num: int, x: Inputs) -> Any:
    """`num` context points for the minibatch `x`; of outputs at every position, positions of a few inputs."""
    if context is None:
        raise InvalidInputError(
            "the method has no context: pass context=, for example fsvi.contexts.Uniform(low=..., high=...)."
        )
    positions = network.layout.positions
    points = context.sample(math.ceil(num / min(_POSITIONS, math.prod(positions))) if positions else num, x)
    if isinstance(points, Tensor) and isinstance(x, Tensor):
        points = points.to(x.dtype)
    elif is_structured(points):
        points = check_inputs(points, network.dtype)
    is_alike = isinstance(points, Tensor) and isinstance(x, Tensor) and points.shape[1:] == x.shape[1:]
    if not is_alike and signature(points) != signature(x):
        raise InvalidInputError(
            f"context points have {describe_inputs(points)}, but the network's inputs have {describe_inputs(x)}: "
            "give a context of the inputs' shape."
        )
    return network.at_positions(network.arranged(points), num) if positions else network.arranged(points)


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
        """The network, with its last layer found on points of the context if it has any before training."""
        example = None if self.context is None else self.context.example()
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

    def _points(self, x: Any) -> Any:
        """K context points for the minibatch `x`."""
        return context_points(self.network, self.context, self.num_context, x)

    def begin(self, x: Any, y: Tensor) -> None:
        """Show the training data to context and prior, and detect a wrong context before the first step.

        A Gaussian process with `learn=True` is fitted to the targets. A learned noise of the likelihood keeps its
        initial value: the noise of the fitted process can be so small that the network would only learn to lower its
        own variance.
        """
        network, prior, likelihood = self.network, self.prior, self.likelihood
        if self.context is not None:
            self.context.prepare(x)
        self._points(x[:128])
        prior.prepare(network.arranged(spread(x, _EXAMPLES)))
        if isinstance(prior, GaussianProcess) and prior.learn:
            assert isinstance(likelihood, Gaussian)
            noise = likelihood.noise.mean() if likelihood.heteroscedastic else likelihood.noise
            complete = ~y.isnan().any(1)
            if not bool(complete.any()):
                raise InvalidInputError("GaussianProcess(learn=True) needs examples without missing targets.")
            is_learned = likelihood.learn_noise or likelihood.heteroscedastic
            prior.fit(network.arranged(x[complete]), y[complete], noise.expand(y.shape[1]), is_learned)
