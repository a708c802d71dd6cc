"""Function-space variational inference (Rudner, Chen, Teh, Gal; NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fsvi.errors import HeadError, InvalidInputError
from fsvi.export import Functions
from fsvi.functions import (
    LINEARIZERS,
    FunctionGaussian,
    Linearization,
    Linearizer,
    has_stochastic_features,
    last_layer,
)
from fsvi.functions.contexts import Context
from fsvi.functions.divergences import KL, Divergence
from fsvi.functions.linearize import Parameters, check_linearization, head_outputs
from fsvi.functions.priors import Constant, Empirical, Prior
from fsvi.inputs import Inputs, concatenate, example_shape
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method, differentiate, mean_of, sum_terms
from fsvi.methods.function_space import FunctionSpace, check_learnable
from fsvi.methods.kl_weight import KLWeight
from fsvi.methods.mean_field import RandomWeights, Stds, all_names, check_stds, last_layer_names, named_layers
from fsvi.methods.network_method import NetworkMethod
from fsvi.methods.parts import shared
from fsvi.networks.compiling import compiled
from fsvi.networks.devices import forked_random
from fsvi.networks.joining import is_joinable, split_norms
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms
from fsvi.validation import check_choice, check_count, check_type
from fsvi.variational import GradientBuffer, MeanField

_PRIOR_VARIANCE = 0.5
_FEW_POSITIONS = 4
"""positions at which a network with outputs at every position is linearized for a check"""

Stochastic: TypeAlias = Literal["all", "last_layer"] | Sequence[str]
"""Which parameters are random."""


class Draw(NamedTuple):
    """A draw of the stochastic parameters.

    Attributes:
        noise: ε, if the prior needs it.
        shift: The distance from the mean, exp(log_std)·ε.
    """

    noise: Tensor | None
    shift: Tensor


class FSVI(NetworkMethod):
    """Minimizes −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · max over S context sets X_C of KL(q(f(X_C)) ‖ p(f(X_C))).

    θ = mean + exp(log_std)·ε is drawn from a mean-field Gaussian q, the `posterior`.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: Where the functions are compared with the prior. `fit` needs it.
        prior: The prior over functions; None is `Constant(0.5)`.
        divergence: What compares posterior and prior at the context points; None is `KL()`.
        linearize: How distributions over parameters become Gaussians over function values: "jvp" (the paper's
            estimator), "conditional" (exact given the feature layers, works with every layer) or "exact" (the whole
            Jacobian, for small networks).
        stochastic: Which parameters are random: "all", those of the "last_layer", or a list of names of layers and
            patterns, such as ["layer4.*", "fc"] or ["*lora_*"]; the last layer is always among them. All others are
            trained as points, or stay as they are if their `requires_grad` is False.
        num_context: The number of context points per set, K. The KL grows with it.
        num_context_sets: The number of sets, S; the largest divergence counts.
        num_samples: The number of draws for the likelihood, M.
        kl_weight: The weight of the divergence in the loss: a number, None for 1/N (the evidence lower bound), or
            `fsvi.Tempered(t)` for t/N.
        stds: How the standard deviations start and learn; None is `Stds()`.
    """

    prior = shared("function_space", "prior")
    context = shared("function_space", "context")
    num_context = shared("function_space", "num_context")
    kl_weight = shared("function_space", "kl_weight")

    takes_positions = True
    _is_joinable = False
    """Whether minibatch and context can go through the network as one batch, on the inputs tried."""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        prior: Prior | None = None,
        divergence: Divergence | None = None,
        linearize: Linearization = "jvp",
        stochastic: Stochastic = "all",
        num_context: int = 24,
        num_context_sets: int = 1,
        num_samples: int = 1,
        kl_weight: KLWeight = None,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(net, likelihood)
        prior = Constant(_PRIOR_VARIANCE) if prior is None else prior
        check_learnable(prior, likelihood)
        self.divergence = KL() if divergence is None else divergence
        check_type("divergence", self.divergence, Divergence, "a divergence such as fsvi.divergences.KL()")
        self.linearize = check_choice("linearize", linearize, LINEARIZERS)
        self.stochastic = _check_stochastic(stochastic)
        self.num_context_sets = check_count("num_context_sets", num_context_sets)
        self.num_samples = check_count("num_samples", num_samples)
        self.stds = check_stds(stds, Stds())
        self.function_space = FunctionSpace(context, prior, num_context, kl_weight, self.linearize)
        self.weights = RandomWeights(self.stds, _chosen_names(self.stochastic))
        self.build(self.function_space.examined(self.network))

    @classmethod
    def from_trained(
        cls,
        net: nn.Module | Network | Method,
        likelihood: Likelihood | None = None,
        context: Context | None = None,
        *,
        freeze: bool | Sequence[str] = False,
        stochastic: Stochastic = "last_layer",
        **settings: Any,
    ) -> FSVI:
        """FSVI that starts from a trained network: a few epochs of `fit` make its uncertainty honest.

        Args:
            net: A trained network, or a trained method such as `MAP`.
            likelihood: The likelihood; None takes the method's.
            context: As in the constructor.
            freeze: True trains the last layer only; names freeze the layers or parameters of those names.
            stochastic: As in the constructor.
            settings: The constructor's other arguments. `prior=fsvi.priors.Empirical(net)` keeps the function close
                to the trained network's.
        """
        if isinstance(net, Method):
            likelihood = net.likelihood if likelihood is None else likelihood
            net = net.network
        if likelihood is None:
            raise InvalidInputError("from_trained needs a likelihood, such as fsvi.Categorical().")
        method = cls(net, likelihood, context, stochastic=stochastic, **settings)
        if not freeze:
            return method
        return cls(method.network.frozen(freeze), likelihood, context, stochastic=stochastic, **settings)

    def as_prior(self) -> Empirical:
        """This posterior as the prior of the next task; its context is then a coreset of the earlier tasks."""
        return Empirical(self)

    @property
    def posterior(self) -> MeanField:
        """q(θ)."""
        return self.weights.posterior

    # The network ----------------------------------------------------------------------------------------------------

    def check_network(self, network: Network) -> None:
        """The last layer must be trainable, and independent of the features."""
        if any(not p.requires_grad for p in network.linear.parameters()):
            raise HeadError(f"the last layer {network.head!r} is frozen, but its parameters carry the uncertainty.")
        if network.is_tied and (self.stochastic == "last_layer" or self.linearize != "exact"):
            raise HeadError(
                f"the last layer {network.head!r} shares a parameter with an earlier layer, or is called twice, so "
                'it is not independent of the features: untie them, or use stochastic="all" with linearize="exact".'
            )

    def see(self, x: Tensor) -> None:
        """Check that the network can be linearized, before training starts."""
        super().see(x)
        points = self.network.at_positions(self.network.arranged(x[:2]), _FEW_POSITIONS)
        check_linearization(self.linearize, self.network, self.posterior, points)

    # Learning -------------------------------------------------------------------------------------------------------

    def begin(self, x: Tensor, num_data: int) -> None:
        """Check whether minibatch and context can go through the network together."""
        super().begin(x, num_data)
        self._is_joinable = False
        if self._shares_features:
            with forked_random(self.device):
                points = self._points(x[: min(len(x), 128)])
            self._is_joinable = is_joinable(self.network, self.network.arranged(x[:2]), points[:2])

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Fit the prior if it is a Gaussian process with `learn=True`."""
        self.function_space.fit_prior(x, y, self.likelihood)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The mean negative log-likelihood of M draws, and the weighted divergence at the worst of S context sets."""
        return dict(self._each_term(self.posterior, x, y, self._joins))

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """As in `Method`, but gradients are summed by a `GradientBuffer`.

        Where minibatch and context go through the network one after the other, each term's graph is freed before the
        next is computed, which takes less memory.
        """
        with GradientBuffer(self.posterior) as q:
            if self._joins:
                terms = dict(self._each_term(q, x, y, joined=True))
                differentiate(sum_terms(terms), scale)
                return {name: term.detach() for name, term in terms.items()}
            terms = {}
            for name, term in self._each_term(q, x, y, joined=False):
                differentiate(term, scale)
                terms[name] = term.detach()
                del term  # its graph holds on to the draw's memory
                if self.linearize != "conditional":  # where the context goes through the same draw
                    q.add_draws()
        return terms

    def function_kl(self, x_context: Any) -> Tensor:
        """The divergence of q(f(X)) from p(f(X)) at these points, summed over outputs.

        Where the network has outputs at every position, it is taken at `num_context` random positions.

        It is exact where only the last layer is stochastic, otherwise an average over new draws of the feature layers.
        """
        x = self.check_inputs(x_context)  # may find another last layer, so the network is looked up after it
        x = self.network.at_positions(self.network.arranged(x), self.num_context)
        draws = self._feature_draws(self.posterior, [])
        return self._mean_divergence(self.posterior, x, draws, self._priors(self.posterior, x, draws))

    def _each_term(self, q: Parameters, x: Inputs, y: Tensor, joined: bool) -> Iterator[tuple[str, Tensor]]:
        """The terms one after the other, with one pass of minibatch and context through the network if `joined`."""
        draws = [self._draw(q) for _ in range(self.num_samples)] if self._is_random else []
        sets = [self._points(x) for _ in range(self.num_context_sets)]
        if joined and example_shape(sets[0]) == example_shape(x):  # texts may have different lengths
            values, f = self._joined_values(q, x, sets[0], draws)
            yield "nll", self.likelihood.nll(values, y)
            (p,) = self._priors(q, sets[0], draws or [None])
            yield "kl", self._weight(x) * self._divergence(f, p)
        else:
            yield "nll", self.likelihood.nll(self._training_values(q, x, draws), y)
            yield "kl", self._weight(x) * self._largest_divergence(q, sets, draws)

    def _draw(self, q: Parameters) -> Draw:
        noise = q.noise()
        return Draw(noise if self.prior.is_random else None, q.shift(noise))

    def _points(self, x: Inputs) -> Any:
        """A set of context points for the minibatch `x`."""
        return self.function_space.points(x)

    def _training_values(self, q: Parameters, x: Inputs, draws: Sequence[Draw]) -> Tensor:
        """The function values of the likelihood, (M, n, outputs)."""
        if self._is_random:
            return self._function_values(q, x, draws)
        features, outputs = self.network.with_features(x, q.params())
        f = last_layer(self.network, q, features.flatten(0, -2), outputs.flatten(0, -2))
        return self._local_draws(f).unflatten(1, features.shape[:-1])

    def _function_values(self, q: Parameters, x: Inputs, draws: Sequence[Draw]) -> Tensor:
        """The real network's outputs for these draws of its parameters, (M, n, outputs)."""
        return torch.stack([self.network(x, q.params(draw.shift)) for draw in draws])

    def _joined_values(
        self, q: Parameters, x: Inputs, points: Inputs, draws: Sequence[Draw]
    ) -> tuple[Tensor, FunctionGaussian]:
        """The likelihood's function values at `x`, and their distribution at `points`, for at most one draw."""
        params = q.params(draws[0].shift if draws else None)
        with split_norms(self.net, len(x)):
            features, outputs = self.network.with_features(concatenate([x, points]), params)
        if not draws:
            own, f = last_layer(self.network, q, features, outputs).split(len(x))
            return self._local_draws(own), f
        features = features[len(x) :]
        f = last_layer(self.network, q, features, head_outputs(self.network, q.params(), features))
        return outputs[None, : len(x)], f

    def _weight(self, x: Inputs) -> float:
        return self.function_space.weight(self.num_data or len(x))

    @property
    def _is_random(self) -> bool:
        """Whether layers before the last are stochastic."""
        return has_stochastic_features(self.network, self.posterior)

    @property
    def _joins(self) -> bool:
        """Whether minibatch and context go through the network together.

        Not with BatchNorm if all layers are random (more memory, hardly less time) or the network is compiled.
        """
        is_possible = self._is_joinable and self._shares_features
        return is_possible and not (batch_norms(self.net) and (self._is_random or compiled(self.net)))

    @property
    def _shares_features(self) -> bool:
        """Whether minibatch and context need the same features, and need them once."""
        if self.num_context_sets > 1 or self.network.is_dense:
            return False
        one_draw = self.linearize == "conditional" and self.num_samples == self.divergence.num_draws == 1
        return one_draw or not self._is_random

    def _local_draws(self, f: FunctionGaussian) -> Tensor:
        """M function values at every example, (M, n, outputs), where the last layer alone is stochastic.

        A draw of the layer would move all examples together. Drawing each value from its own marginal, which is
        Gaussian, leaves the expected log-likelihood as it is and removes most of the noise from its gradient.
        """
        tiny = torch.finfo(f.mean.dtype).tiny
        std = (f.variance().T + tiny).sqrt()
        noise = torch.randn((self.num_samples, *std.shape), dtype=std.dtype, device=std.device)
        return torch.addcmul(f.mean, std, noise)

    # The divergence -------------------------------------------------------------------------------------------------

    def _largest_divergence(self, q: Parameters, sets: list[Tensor], draws: Sequence[Draw]) -> Tensor:
        """The largest divergence over the sets; only this one needs a gradient."""
        shared_draws = self._feature_draws(q, draws)
        priors = [self._priors(q, x, shared_draws) for x in sets]
        worst = 0
        if len(sets) > 1:
            with torch.no_grad():
                values = [self._mean_divergence(q, x, shared_draws, p) for x, p in zip(sets, priors, strict=True)]
            worst = int(torch.stack(values).argmax())
        return self._mean_divergence(q, sets[worst], shared_draws, priors[worst])

    def _mean_divergence(
        self, q: Parameters, x: Tensor, draws: Sequence[Draw | None], priors: Sequence[FunctionGaussian]
    ) -> Tensor:
        """The divergence at one context set, averaged over draws of the feature layers."""
        values = [self._linearizer(self.network, q, x, None if draw is None else draw.shift) for draw in draws]
        return mean_of([self._divergence(each, p) for each, p in zip(values, priors, strict=True)])

    def _divergence(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        return self.divergence.between(q, p if p.mean.shape == q.mean.shape else p.joint())

    def _priors(self, q: Parameters, x: Tensor, draws: Sequence[Draw | None]) -> list[FunctionGaussian]:
        """The prior at `x` for each draw of the posterior.

        A random prior is drawn with the same noise. By the joint convexity of the KL, its average over common draws is
        an upper bound on the KL between the two mixtures, and it is zero where posterior and prior agree.
        """
        prior: Prior = self.prior
        if not prior.is_random:
            return [prior.gaussian(x)] * len(draws)
        noises = [None if draw is None else draw.noise for draw in draws]
        return [prior.gaussian(x, None if noise is None else q.layout.views(noise)) for noise in noises]

    @property
    def _linearizer(self) -> Linearizer:
        """`exact` treats all outputs as one vector, which is needed only where features are stochastic."""
        return LINEARIZERS["jvp" if self.linearize == "exact" and not self._is_random else self.linearize]

    def _feature_draws(self, q: Parameters, draws: Sequence[Draw]) -> list[Draw | None]:
        """The draws for the divergence, those of the likelihood first: it stays unbiased, and a draw is saved."""
        if self.linearize == "exact" or not self._is_random:
            return [None]
        num = self.divergence.num_draws
        return [*draws[:num], *(self._draw(q) for _ in range(num - len(draws)))]

    # Prediction -----------------------------------------------------------------------------------------------------

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Outputs for draws of the parameters; one pass serves all draws where only the last layer is random."""
        q = self.posterior
        if self._is_random:
            return self.draw_functions(self.weights.draws(num_samples, generator), x, batch_size)
        means = q.params()
        features = self.batched(lambda b: self.network.with_features(b, means)[0].flatten(0, -2), x, batch_size)
        shifts = torch.stack([q.shift(q.noise(generator)) for _ in range(num_samples)])
        weight, *bias = (q.layout.views(q.mean + shifts)[name] for name in self.network.head_names)
        values = features @ weight.flatten(2).flatten(0, 1).T  # one matrix product for all draws
        values = values.unflatten(1, (num_samples, -1)).transpose(0, 1)
        return values + bias[0][:, None] if bias else values

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The network's outputs for draws of its parameters."""
        return self.fixed_functions(self.weights.draws(num_samples, generator))


def _check_stochastic(stochastic: Any) -> Any:
    """ "all", "last_layer" or a list of patterns."""
    if isinstance(stochastic, str):
        return check_choice("stochastic", stochastic, ("all", "last_layer"))
    if isinstance(stochastic, (list, tuple)) and stochastic and all(isinstance(each, str) for each in stochastic):
        return list(stochastic)
    raise InvalidInputError(f"stochastic={stochastic!r} must be 'all', 'last_layer' or a list of names and patterns.")


def _chosen_names(stochastic: Any) -> Callable[[Network], list[str]]:
    if isinstance(stochastic, str):
        return last_layer_names if stochastic == "last_layer" else all_names
    return named_layers(stochastic)
