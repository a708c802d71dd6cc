"""What methods with a prior over functions share."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.functions.contexts import Context
from fsvi.functions.kernels import spread
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.validation import check_count, check_inputs, check_positive, check_type

_EXAMPLES = 512
"""training inputs that a prior looks at"""
_PRIOR = "prior."


class FunctionSpaceMethod(Method):
    """A method that compares its functions with those of a `prior`, at K = `num_context` points of a `context`.

    `kl_weight` is the weight of their divergence in the loss; None is 1/N, the evidence lower bound divided by N. With
    `learn_prior` a Gaussian process is first fitted to the targets of a regression, by marginal likelihood.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None,
        prior: Prior,
        num_context: int,
        kl_weight: float | None,
        learn_prior: bool = False,
    ) -> None:
        super().__init__(net, likelihood)
        if context is not None:
            check_type("context", context, Context, "a context such as fsvi.contexts.Dataset(tensor)")
        check_type("prior", prior, Prior, "a prior such as fsvi.priors.Constant(variance=1.0)")
        self.context = None if context is None else context.copied()
        self.prior = copy.deepcopy(prior)
        self.num_context = check_count("num_context", num_context)
        self.kl_weight = None if kl_weight is None else check_positive("kl_weight", kl_weight, zero=True)
        self.learn_prior = learn_prior

    def first_network(self) -> Network:
        """The network, its head found on points of the context if it has any before training."""
        example = None if self.context is None else self.context.example()
        return self.network if example is None else self.network.examined(check_inputs(example, self.dtype))

    def build(self, network: Network) -> None:
        """Bind the prior to the network."""
        super().build(network)
        self.prior.bind(network)

    def begin(self, x: Tensor, num_data: int) -> None:
        """Let context and prior see the training inputs, and find a bad context before the first step."""
        super().begin(x, num_data)
        if self.context is not None:
            self.context.prepare(x)
        self.draw_context(x[: min(len(x), 128)])
        self.prior.prepare(self.network.arranged(spread(x, _EXAMPLES)))

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """With `learn_prior`, fit the Gaussian process to the targets.

        A learned noise stays where it starts: that of the process may be so small that the network learns nothing else
        but to lower its own variance.
        """
        likelihood, prior = self.likelihood, self.prior
        if self.learn_prior and isinstance(likelihood, Gaussian) and isinstance(prior, GaussianProcess):
            free = likelihood.learn_noise or likelihood.heteroscedastic
            noise = likelihood.noise.mean() if likelihood.heteroscedastic else likelihood.noise
            prior.fit(self.network.arranged(x), y, noise.expand(y.shape[1]), free)

    def fingerprint(self) -> Any:
        """The context's."""
        return None if self.context is None else self.context.fingerprint()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over the tensors, however many numbers the prior has of its own; all or, with an error, none."""
        own = {name.removeprefix(_PRIOR): value for name, value in tensors.items() if name.startswith(_PRIOR)}
        before = {name: value.clone() for name, value in self.prior.named_buffers()}
        self.prior.make_room({name: value for name, value in own.items() if self._fits_inputs(value)})
        try:
            super().load_tensors(tensors)
        except FileFormatError:
            self.prior.make_room(before)
            for name, value in self.prior.named_buffers():
                value.copy_(before[name])
            raise

    def _fits_inputs(self, values: Tensor) -> bool:
        """Whether a prior's vector has a number for every column, and one more, as far as the columns are known."""
        shape = self.input_shape
        return shape is None or len(shape) != 1 or values.numel() in (2, shape[0] + 1)

    def weight(self, x: Tensor) -> float:
        """The divergence's weight in the loss on the minibatch `x`."""
        return 1 / (self.num_data or len(x)) if self.kl_weight is None else self.kl_weight

    def draw_context(self, x: Tensor) -> Tensor:
        """A set of K context points to go with the minibatch `x`."""
        if self.context is None:
            raise InvalidInputError(
                f"{type(self).__name__} has no context: pass context=, e.g. fsvi.contexts.Uniform(low=..., high=...)."
            )
        points = self.context.sample(self.num_context, x)
        if points.shape[1:] != x.shape[1:]:
            raise InvalidInputError(
                f"context points have shape {tuple(points.shape[1:])}, but the network's inputs have shape "
                f"{tuple(x.shape[1:])}: give a context of the inputs' shape."
            )
        return self.network.arranged(points.to(x.dtype))
