"""What methods with a prior over functions share: a context, a prior, and the points at which they are compared.

Such a method has the attributes `context`, `prior` and `num_context`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from torch import Tensor

from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.functions.kernels import spread
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.inputs import Inputs, describe_inputs, is_structured, signature
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.networks.network import Network
from fsvi.validation import check_inputs, check_type

_EXAMPLES = 512
"""training inputs that a prior looks at"""
_POSITIONS = 4
"""context points per context input, where points are positions of an input's outputs"""


def own_context(context: Context | None) -> Context | None:
    """A copy of the user's context; None where it is not known yet, as in a file without data."""
    if context is None:
        return None
    check_type("context", context, Context, "a context such as fsvi.contexts.Dataset(tensor)")
    return context.copied()


def own_prior(prior: Prior, likelihood: Likelihood) -> Prior:
    """A copy of the user's prior, if it can be used with the likelihood."""
    check_type("prior", prior, Prior, "a prior such as fsvi.priors.Constant(variance=1.0)")
    if isinstance(prior, GaussianProcess) and prior.learn and not isinstance(likelihood, Gaussian):
        raise InvalidInputError(
            "GaussianProcess(learn=True) is fitted to the targets of a regression, which "
            f"{type(likelihood).__name__} is not for: pass likelihood=fsvi.Gaussian(...), or learn=False."
        )
    return copy.deepcopy(prior)


def examined(network: Network, context: Context | None) -> Network:
    """The network, with its last layer found on points of the context if it has any before training."""
    example = None if context is None else context.example()
    if example is None:
        return network
    try:
        return network.examined(check_inputs(example, network.dtype))
    except HeadError:
        raise
    except InvalidInputError as error:
        raise InvalidInputError(f"points of the context do not fit the network: {error}") from error


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
    if signature(points) != signature(x):
        raise InvalidInputError(
            f"context points have {describe_inputs(points)}, but the network's inputs have {describe_inputs(x)}: "
            "give a context of the inputs' shape."
        )
    return network.at_positions(network.arranged(points), num)


def begin_function_space(method: Any, x: Inputs, y: Tensor) -> None:
    """Show the training data to a method's context and prior, and detect a wrong context before the first step.

    A Gaussian process with `learn=True` is fitted to the targets. A learned noise of the likelihood keeps its initial
    value: the noise of the fitted process can be so small that the network would only learn to lower its own variance.
    """
    network, prior, likelihood = method.network, method.prior, method.likelihood
    if method.context is not None:
        method.context.prepare(x)
    context_points(network, method.context, method.num_context, x[: min(len(x), 128)])
    prior.prepare(network.arranged(spread(x, _EXAMPLES)))
    if isinstance(prior, GaussianProcess) and prior.learn:
        noise = likelihood.noise.mean() if likelihood.heteroscedastic else likelihood.noise
        complete = ~y.isnan().any(1)
        if not bool(complete.any()):
            raise InvalidInputError("GaussianProcess(learn=True) needs examples without missing targets.")
        y = y[complete]
        prior.fit(
            network.arranged(x[complete]),
            y,
            noise.expand(y.shape[1]),
            likelihood.learn_noise or likelihood.heteroscedastic,
        )
