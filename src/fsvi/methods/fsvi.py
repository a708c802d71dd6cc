"""Function-space variational inference (Rudner, Chen, Teh, Gal; NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions import (
    LINEARIZERS,
    FunctionGaussian,
    Linearization,
    Linearizer,
    diagonal_kl,
    gaussian_kl,
    has_stochastic_features,
    last_layer,
)
from fsvi.functions.contexts import Context
from fsvi.functions.priors import Constant, Empirical, GaussianProcess, Prior
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.base import Method
from fsvi.methods.function_space import FunctionSpaceMethod
from fsvi.methods.mean_field import MeanFieldMethod
from fsvi.networks.joining import is_joinable
from fsvi.networks.network import Network
from fsvi.validation import check_choice, check_count, check_inputs, check_positive
from fsvi.variational import MeanField, prior_names

_FEATURE_STD = 0.01
_PRIOR_VARIANCE = 0.5


class FSVI(FunctionSpaceMethod, MeanFieldMethod):
    """Minimises −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · max over S context sets X_C of KL(q(f(X_C)) ‖ p(f(X_C))).

    θ = mean + exp(log_std)·ε is drawn from a mean-field Gaussian q. `linearize` says how q's function values at the
    K context points of a set become Gaussian, `prior` what they are compared with, `context` where the points come
    from. `kl_weight=None` is 1/N, the evidence lower bound divided by N; the KL grows with K, so the two belong
    together. R, the draws of the feature layers for the KL, is `num_feature_draws`. With `learn_prior` a prior
    `GaussianProcess` is first fitted to the targets of a regression, by marginal likelihood.

    `init_std` is where the standard deviations of the feature layers' and the last layer's parameters start; the
    default, (0.01, 1/√features), gives function values a variance of order one. `log_std` learns `log_std_lr_scale`
    times as fast as the means.
    """

    _is_joinable = False
    """whether the network treats every example alone, and in training as in evaluation, as far as was seen"""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        prior: Prior | None = None,
        num_context: int = 24,
        num_context_sets: int = 1,
        num_samples: int = 1,
        num_feature_draws: int = 1,
        stochastic: Literal["all", "last_layer"] = "all",
        covariance: Literal["full", "diagonal"] = "full",
        linearize: Linearization = "jvp",
        nugget: float = 1e-2,
        kl_weight: float | None = None,
        init_std: tuple[float, float] | None = None,
        log_std_lr_scale: float = 3.0,
        learn_prior: bool = False,
    ) -> None:
        prior = Constant(_PRIOR_VARIANCE) if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight, learn_prior)
        if learn_prior and not (isinstance(likelihood, Gaussian) and isinstance(prior, GaussianProcess)):
            raise InvalidInputError(
                "learn_prior=True fits a Gaussian process to the targets of a regression: pass "
                "prior=fsvi.priors.GaussianProcess() and likelihood=fsvi.Gaussian(...), or leave it out."
            )
        self.num_context_sets = check_count("num_context_sets", num_context_sets)
        self.num_samples = check_count("num_samples", num_samples)
        self.num_feature_draws = check_count("num_feature_draws", num_feature_draws)
        self.stochastic = check_choice("stochastic", stochastic, ("all", "last_layer"))
        self.covariance = check_choice("covariance", covariance, ("full", "diagonal"))
        self.linearize = check_choice("linearize", linearize, LINEARIZERS)
        self.nugget = check_positive("nugget", nugget, zero=True)
        self.init_std = None if init_std is None else _checked_pair("init_std", init_std)
        self.log_std_lr_scale = check_positive("log_std_lr_scale", log_std_lr_scale, zero=True)
        self.build(self.first_network())

    def check_network(self, network: Network) -> None:
        """The last layer must be free to move, and independent of the features."""
        frozen = [name for name, p in network.linear.named_parameters() if not p.requires_grad]
        if frozen:
            raise HeadError(f"the last layer {network.head!r} is frozen, but its parameters carry the uncertainty.")
        if network.is_tied and (self.stochastic == "last_layer" or self.linearize != "exact"):
            raise HeadError(
                f"the last layer {network.head!r} shares a parameter with an earlier layer, or is called twice, so "
                'it is not independent of the features: untie them, or use stochastic="all" with linearize="exact".'
            )

    def build(self, network: Network) -> None:
        """Make the variational parameters and bind the prior."""
        super().build(network)
        head = network.head_names
        names = head if self.stochastic == "last_layer" else prior_names(self.net)
        self.posterior = MeanField(self.net, names, self.network.channels_last)
        features, last = self.init_std or (_FEATURE_STD, network.linear.in_features**-0.5)
        self.posterior.set_stds({name: last if name in head else features for name in names})

    @classmethod
    def from_trained(
        cls,
        net: nn.Module | Network | Method,
        likelihood: Likelihood | None = None,
        context: Context | None = None,
        *,
        freeze: bool | Sequence[str] = False,
        stochastic: Literal["all", "last_layer"] = "last_layer",
        **settings: Any,
    ) -> FSVI:
        """FSVI that starts from a trained network: a few epochs of `fit` make its uncertainty honest.

        `net` is a trained network, or a trained method such as `MAP`, whose likelihood is then taken too.
        `freeze=True` trains the last layer alone; names freeze the layers or parameters that bear them. `settings` are
        the constructor's: `prior=fsvi.priors.Empirical(net)` holds the function to the trained network's.
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
        """This posterior as the prior of the next task; its context is then a coreset of the tasks before."""
        return Empirical(self)

    # Learning -------------------------------------------------------------------------------------------------------

    def begin(self, x: Tensor, num_data: int) -> None:
        """As in `FunctionSpaceMethod`; and find out whether minibatch and context may go through the network as one."""
        super().begin(x, num_data)
        self._is_joinable = False
        if self._shares_features:
            with torch.random.fork_rng(devices=[]):
                points = self.draw_context(x[: min(len(x), 128)])
            self._is_joinable = is_joinable(self.network, self.network.arranged(x[:2]), points[:2])

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL at the worst of S context sets."""
        return self._joined_terms(x, y) if self._joins else dict(self._each_term(x, y))

    def backward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """As in `Method`, but gradients are gathered by hand (`Tape`) where features are stochastic.

        And where minibatch and context go through the network one after the other, each term's graph is freed before
        the next is computed, which takes less memory.
        """
        if not has_stochastic_features(self.network, self.posterior):
            return super().backward(x, y)
        with self.posterior.taped():
            if self._joins:
                return super().backward(x, y)
            terms: dict[str, Tensor] = {}
            for name, term in self._each_term(x, y):
                term.backward()
                terms[name] = term.detach()
        return terms

    def _each_term(self, x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
        q = self.posterior
        random = has_stochastic_features(self.network, q)
        shifts = [q.shift(q.noise()) for _ in range(self.num_samples)] if random else []
        sets = [self.draw_context(x) for _ in range(self.num_context_sets)]
        if random:
            values = self.outputs(x, shifts)
        else:
            params = q.params()
            values = self._local_draws(params, self.network.with_features(x, params)[0])
        yield "nll", self.likelihood.nll(values, y)
        yield "kl", self.weight(x) * self._largest_kl(sets, shifts)

    @property
    def _joins(self) -> bool:
        """Whether one pass through the network serves minibatch and context."""
        return self._is_joinable and self._shares_features

    @property
    def _shares_features(self) -> bool:
        """Whether minibatch and context need the same features, and need them once."""
        conditional = self.linearize == "conditional" and self.num_samples == self.num_feature_draws == 1
        return self.num_context_sets == 1 and (conditional or self.stochastic == "last_layer")

    def _joined_terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The terms by one pass of minibatch and context through the network, which spares calls and small kernels."""
        q, network = self.posterior, self.network
        random = has_stochastic_features(network, q)
        params = q.params(q.shift(q.noise()) if random else None)
        points = self.draw_context(x)
        features, outputs = network.with_features(torch.cat([x, points]), params)
        values = outputs[None, : len(x)] if random else self._local_draws(params, features[: len(x)])
        nll = self.likelihood.nll(values, y)
        means = q.params() if random else params
        kl = self._divergence(last_layer(network, q, means, features[len(x) :]), self._prior_at(points))
        return {"nll": nll, "kl": self.weight(x) * kl}

    def function_kl(self, x_context: Any) -> Tensor:
        """KL(q(f(X)) ‖ p(f(X))) at these points, summed over outputs; exact where only the last layer is stochastic,
        otherwise an average over fresh draws of the feature layers."""
        x = check_inputs(x_context, self.dtype)
        if x.shape[1:] != self._seen:
            self.see(x[:2])
        return self._kl(self.network.arranged(x), [])

    def _local_draws(self, params: dict[str, Tensor], features: Tensor) -> Tensor:
        """M function values at every example, (M, n, outputs), where the last layer alone is stochastic.

        A draw of the layer would move all examples alike; drawing each value from its own marginal, which is Gaussian,
        leaves the expected log-likelihood as it is and takes most of the noise from its gradient.
        """
        f = last_layer(self.network, self.posterior, params, features)
        tiny = torch.finfo(f.mean.dtype).tiny
        std = (f.variance().T + tiny).sqrt()
        return f.mean + std * torch.randn((self.num_samples, *std.shape), dtype=std.dtype, device=std.device)

    def _head_outputs(self, features: Tensor, shifts: Tensor) -> Tensor:
        """Outputs for draws of the last layer alone, (M, n, outputs), by one matrix product."""
        weight, *bias = (self.posterior.layout.views(self.posterior.mean + shifts)[n] for n in self.network.head_names)
        draws, outputs, width = weight.shape
        values = features @ weight.reshape(-1, width).T
        values = values.view(len(features), draws, outputs).transpose(0, 1)
        return values + bias[0][:, None] if bias else values

    def _largest_kl(self, sets: list[Tensor], shifts: list[Tensor]) -> Tensor:
        """max over sets of the KL summed over outputs; only the largest needs a gradient."""
        if len(sets) == 1:
            return self._kl(sets[0], shifts)
        draws = self._feature_draws(shifts)
        priors = [self._prior_at(x) for x in sets]
        with torch.no_grad():
            values = torch.stack([self._kl(x, draws, p) for x, p in zip(sets, priors, strict=True)])
        worst = int(values.argmax())
        return self._kl(sets[worst], draws, priors[worst])

    def _kl(self, x: Tensor, shifts: Sequence[Tensor | None], p: FunctionGaussian | None = None) -> Tensor:
        """The KL from the prior `p` at one context set, averaged over R draws of the feature layers, `shifts` first."""
        p = self._prior_at(x) if p is None else p
        q = [self._linearizer(self.network, self.posterior, x, shift) for shift in self._feature_draws(shifts)]
        return torch.stack([self._divergence(each, p) for each in q]).mean()

    def _divergence(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        return (gaussian_kl if self.covariance == "full" else diagonal_kl)(q, p, self.nugget)

    def _prior_at(self, x: Tensor) -> FunctionGaussian:
        joint = self._linearizer is LINEARIZERS["exact"]
        return self.prior.gaussian(self.network, x, self._linearizer, joint)

    @property
    def _linearizer(self) -> Linearizer:
        """`exact` treats all outputs as one vector, which is needed only where features are stochastic."""
        exact = self.linearize == "exact"
        return LINEARIZERS[
            "jvp" if exact and not has_stochastic_features(self.network, self.posterior) else self.linearize
        ]

    def _feature_draws(self, shifts: Sequence[Tensor | None]) -> list[Tensor | None]:
        """R draws for the KL, those of the likelihood first: each term stays unbiased, and a draw is saved."""
        q = self.posterior
        if self.linearize == "exact" or not has_stochastic_features(self.network, q):
            return [None]
        more = self.num_feature_draws - len(shifts)
        return [*shifts[: self.num_feature_draws], *(q.shift(q.noise()) for _ in range(more))]

    # Prediction -----------------------------------------------------------------------------------------------------

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Draws of the parameters through the real network; with a stochastic last layer alone, one pass serves all."""
        q = self.posterior
        if has_stochastic_features(self.network, q):
            return super().function_draws(x, num_samples, generator, batch_size)
        means = q.params()
        features = self.batched(lambda b: self.network.with_features(b, means)[0], x, batch_size)
        shifts = torch.stack([q.shift(q.noise(generator)) for _ in range(num_samples)])
        return self._head_outputs(features, shifts)

    # Files ----------------------------------------------------------------------------------------------------------

    def redundant_names(self) -> set[str]:
        """The networks' own parameters, whose values the posterior and the prior hold."""
        return super().redundant_names() | {
            name for name, _ in self.named_parameters() if name.startswith("prior.net.")
        }


def _checked_pair(name: str, values: Sequence[float]) -> tuple[float, float]:
    if not isinstance(values, (tuple, list)) or len(values) != 2:
        raise InvalidInputError(f"{name}={values!r} must be a pair: for the feature layers, and for the last layer.")
    features, last = (check_positive(name, value) for value in values)
    return features, last
