"""The part that methods with a prior over functions share."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.functions.kernels import spread
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.inputs import Inputs, describe_inputs, is_structured, signature
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.kl_weight import KLWeight, check_kl_weight, kl_weight_value
from fsvi.methods.parts import Part
from fsvi.networks.network import Network
from fsvi.validation import check_count, check_inputs, check_type

_EXAMPLES = 512
"""training inputs that a prior looks at"""
_POSITIONS = 4
"""context points per context input, where points are positions of an input's outputs"""


class FunctionSpace(Part):
    """A prior over functions, the points at which functions are compared with it, and the comparison's weight.

    Args:
        context: The distribution of context points; None where it is not known yet, as in a file without data.
        prior: The prior over functions; it is copied.
        num_context: The number of points per set, K.
        kl_weight: The weight of the divergence in the loss; see `KLWeight`.
        linearize: How a prior over parameters becomes a prior over functions.
    """

    def __init__(
        self, context: Context | None, prior: Prior, num_context: int, kl_weight: KLWeight, linearize: str = "jvp"
    ) -> None:
        super().__init__()
        self.context = _own_context(context)
        self.prior = _own_prior(prior)
        self.num_context = check_count("num_context", num_context)
        self.kl_weight = check_kl_weight(kl_weight)
        self._linearize = linearize

    def replace(self, name: str, value: Any) -> None:
        """Give a setting another value, checked and copied as in the constructor; a prior is bound to the network.

        Args:
            name: "context", "prior", "num_context" or "kl_weight".
            value: The new value.
        """
        if name == "context":
            self.context = _own_context(value)
        elif name == "prior":
            self.prior = _own_prior(value)
            self.prior.bind(self.network, self._linearize)
        elif name == "num_context":
            self.num_context = check_count(name, value)
        else:
            self.kl_weight = check_kl_weight(value)

    # The points -----------------------------------------------------------------------------------------------------

    def examined(self, network: Network) -> Network:
        """The network, with its last layer found on points of the context if it has any before training."""
        example = None if self.context is None else self.context.example()
        if example is None:
            return network
        try:
            return network.examined(check_inputs(example, network.dtype))
        except InvalidInputError as error:
            if isinstance(error, HeadError):
                raise
            raise InvalidInputError(f"points of the context do not fit the network: {error}") from error

    def points(self, x: Inputs) -> Any:
        """A set of K context points for the minibatch `x`.

        Where the network has outputs at every position of an input, points are positions of a few inputs.
        """
        if self.context is None:
            raise InvalidInputError(
                "the method has no context: pass context=, for example fsvi.contexts.Uniform(low=..., high=...)."
            )
        if self.network.is_dense:
            examples = math.ceil(self.num_context / min(_POSITIONS, math.prod(self.network.layout.positions)))
            return self.network.at_positions(self._sample(examples, x), self.num_context)
        return self._sample(self.num_context, x)

    def _sample(self, num: int, x: Inputs) -> Any:
        """`num` inputs of the context, of the same kind as `x`."""
        points = self.context.sample(num, x)  # type: ignore[union-attr]
        if isinstance(points, Tensor) and isinstance(x, Tensor):
            points = points.to(x.dtype)
        elif is_structured(points):
            points = check_inputs(points, self.network.dtype)
        if signature(points) != signature(x):
            raise InvalidInputError(
                f"context points have {describe_inputs(points)}, but the network's inputs have {describe_inputs(x)}: "
                "give a context of the inputs' shape."
            )
        return self.network.arranged(points)

    def weight(self, num_data: int) -> float:
        """The weight of the divergence in the loss, with `num_data` training examples."""
        return kl_weight_value(self.kl_weight, num_data)

    # The method's life ----------------------------------------------------------------------------------------------

    def bind(self, network: Network) -> None:
        """Bind the prior to the network."""
        super().bind(network)
        self.prior.bind(network, self._linearize)

    def begin(self, x: Tensor) -> None:
        """Show the training inputs to context and prior, and detect a wrong context before the first step."""
        if self.context is not None:
            self.context.prepare(x)
        self.points(x[: min(len(x), 128)])
        self.prior.prepare(self.network.arranged(spread(x, _EXAMPLES)))

    def fit_prior(self, x: Tensor, y: Tensor, likelihood: Likelihood) -> None:
        """Fit a Gaussian process with `learn=True` to the targets of a regression.

        A learned noise of the likelihood keeps its initial value. The noise of the fitted process can be so small that
        the network would only learn to lower its own variance.

        Args:
            x: Training inputs.
            y: Their targets.
            likelihood: The method's likelihood.
        """
        check_learnable(self.prior, likelihood)
        if isinstance(self.prior, GaussianProcess) and self.prior.learn and isinstance(likelihood, Gaussian):
            is_free = likelihood.learn_noise or likelihood.heteroscedastic
            noise = likelihood.noise.mean() if likelihood.heteroscedastic else likelihood.noise
            complete = ~y.isnan().any(1)
            if not bool(complete.any()):
                raise InvalidInputError("GaussianProcess(learn=True) needs examples without missing targets.")
            x, y = x[complete], y[complete]
            self.prior.fit(self.network.arranged(x), y, noise.expand(y.shape[1]), is_free)

    def redundant_names(self) -> set[str]:
        """The parameters of the prior's network: the prior's distribution holds their values."""
        return {name for name, _ in self.named_parameters() if name.startswith("prior.net.")}

    def resize(self, tensors: Mapping[str, Tensor], input_shape: tuple[int, ...] | None) -> None:
        """Resize the prior's tensors to the sizes in a file; sizes that do not fit the number of columns are ignored.

        Args:
            tensors: The part's tensors in the file, by name.
            input_shape: The shape of one input, if it is known.
        """
        own = {name.removeprefix("prior."): value for name, value in tensors.items() if name.startswith("prior.")}
        columns = input_shape[0] if isinstance(input_shape, tuple) and len(input_shape) == 1 else None
        self.prior.make_room(own, columns)

    def fingerprint(self) -> Any:
        """The context's checksum."""
        return None if self.context is None else self.context.fingerprint()


def _own_context(context: Context | None) -> Context | None:
    if context is None:
        return None
    check_type("context", context, Context, "a context such as fsvi.contexts.Dataset(tensor)")
    return context.copied()


def _own_prior(prior: Prior) -> Prior:
    check_type("prior", prior, Prior, "a prior such as fsvi.priors.Constant(variance=1.0)")
    return copy.deepcopy(prior)


def check_learnable(prior: Prior, likelihood: Likelihood) -> None:
    """Refuse to fit a Gaussian process to targets that are not real numbers.

    Args:
        prior: The prior.
        likelihood: The method's likelihood.
    """
    if isinstance(prior, GaussianProcess) and prior.learn and not isinstance(likelihood, Gaussian):
        raise InvalidInputError(
            "GaussianProcess(learn=True) is fitted to the targets of a regression, which "
            f"{type(likelihood).__name__} is not for: pass likelihood=fsvi.Gaussian(...), or learn=False."
        )
