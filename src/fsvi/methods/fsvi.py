"""Function-space variational inference (Rudner, Chen, Teh, Gal; NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Context, Suitable
from fsvi.functions.contexts.general import context_points
from fsvi.functions.divergences import KL, Divergence, KLWeight, Tempered, kl_weight_value
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.linearize import (
    LINEARIZERS,
    Linearization,
    check_linearization,
    has_stochastic_features,
    last_layer,
)
from fsvi.functions.priors import Constant, Prior
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.common import FunctionSpaceMethod, check_trainable, check_untied
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Draw, Stds, Stochastic, check_stds, check_stochastic, mean_field
from fsvi.validation import check_choice, check_count, check_type

_PRIOR_VARIANCE = 0.5
_TRAINED_POINTS = 8
"""The number of context points as which the KL counts for a trained network, however many there are."""
_FEW_POSITIONS = 4
"""positions at which a network with outputs at every position is linearized for a check"""


class FSVI(FunctionSpaceMethod):
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
        kl_weight: The weight of the divergence: a number, None for 1/N (the ELBO), or `fsvi.Tempered(t)` for t/N.
        stds: How the standard deviations start and learn; None is `Stds()`.

    Examples:
        >>> x, y = fsvi.data.two_moons(200, noise=0.2, seed=0)
        >>> net = fsvi.networks.mlp(2, (30, 30), 2, torch.nn.Tanh)
        >>> method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Uniform(low=[-10, -10], high=[10, 10]))
        >>> history = fsvi.fit(method, (x, y), epochs=50, seed=0)
        >>> p = method.predict(torch.tensor([[1.0, 0.5], [8.0, -8.0]]))
        >>> bool(p.entropy()[1] > p.entropy()[0])  # more doubt away from the data
        True
    """

    _takes_positions = True

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
        prior = Constant(_PRIOR_VARIANCE) if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight)
        self.divergence = KL() if divergence is None else divergence
        check_type("divergence", self.divergence, Divergence, "a divergence such as fsvi.divergences.KL()")
        self.linearize = check_choice("linearize", linearize, LINEARIZERS)
        self.stochastic = check_stochastic(stochastic)
        self.num_context_sets = check_count("num_context_sets", num_context_sets)
        self.num_samples = check_count("num_samples", num_samples)
        self.stds = check_stds(stds, Stds())
        self.build(self._examined())

    def build(self, network: Network) -> None:
        """Make q. The last layer must be trainable and independent of the rest."""
        check_trainable(network)
        if self.stochastic == "last_layer" or self.linearize != "exact":
            check_untied(network, 'untie them, or use stochastic="all" with linearize="exact"')
        super().build(network)
        self.posterior = mean_field(network, self.stds, self.stochastic)
        self._has_random_features = has_stochastic_features(network, self.posterior)

    @classmethod
    def from_trained(
        cls,
        net: nn.Module | Network | Method,
        likelihood: Likelihood | None = None,
        context: Context | None = None,
        *,
        freeze: bool | Sequence[str] = False,
        stochastic: Stochastic = "last_layer",
        num_context: int = 24,
        **settings: Any,
    ) -> FSVI:
        """FSVI that starts from a trained network: a few epochs of `fit` make its uncertainty honest.

        Args:
            net: A trained network, or a trained method such as `MAP`.
            likelihood: The likelihood; None takes the method's.
            context: As in the constructor; None is `contexts.Suitable()`, which looks at the training inputs.
            freeze: True trains the last layer only; names freeze the layers or parameters of those names.
            stochastic: As in the constructor.
            num_context: As in the constructor, K.
            settings: The constructor's other arguments. `kl_weight` is `fsvi.Tempered(8 / K)` unless given, so that the
                KL does not grow with K and leaves the network its confidence on the data.
                `prior=fsvi.priors.Empirical(net)` keeps the function close to the trained network's.
        """
        if isinstance(net, Method):
            likelihood = net.likelihood if likelihood is None else likelihood
            net = net.network
        if likelihood is None:
            raise InvalidInputError("from_trained needs a likelihood, such as fsvi.Categorical().")
        context = Suitable() if context is None else context
        weight = Tempered(_TRAINED_POINTS / check_count("num_context", num_context))
        settings = {"kl_weight": weight, "num_context": num_context, "stochastic": stochastic, **settings}
        method = cls(net, likelihood, context, **settings)
        return cls(method.network.frozen(freeze), likelihood, context, **settings) if freeze else method

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The mean negative log-likelihood of M draws, and the weighted divergence at the worst of S context sets."""
        num = max(self.num_samples, self.divergence.num_draws) if self._has_random_features else 0
        draws = [self.posterior.draw() for _ in range(num)]  # likelihood and divergence share them
        nll = self.likelihood.nll(self._values_at(x, draws[: self.num_samples]), y)
        sets, worst = [self._points(x) for _ in range(self.num_context_sets)], 0
        if len(sets) > 1:  # only the largest divergence needs a gradient
            with torch.no_grad():
                worst = int(torch.stack([self._divergence_at(points, draws) for points in sets]).argmax())
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        return {"nll": nll, "kl": weight * self._divergence_at(sets[worst], draws)}

    def _points(self, x: Any) -> Any:
        """K context points for the minibatch `x`."""
        return context_points(self.network, self.context, self.num_context, x)

    def _values_at(self, x: Any, draws: Sequence[Draw]) -> Tensor:
        """Function values of the likelihood, (M, n, outputs): those of the real network under the draws.

        If the last layer alone is random, every value is drawn from its own marginal, which is Gaussian. A draw of the
        layer would move all examples together; this leaves the expected log-likelihood as it is and removes most of
        the noise from its gradient.
        """
        if draws:
            return torch.stack([self.network(x, draw.params) for draw in draws])
        features, outputs = self.network.with_features(x)
        f = last_layer(self.network, self.posterior, features.flatten(0, -2), outputs.flatten(0, -2))
        std = (f.variance().T + torch.finfo(f.mean.dtype).tiny).sqrt()
        noise = torch.randn((self.num_samples, *std.shape), dtype=std.dtype, device=std.device)
        return torch.addcmul(f.mean, std, noise).unflatten(1, features.shape[:-1])

    def _divergence_at(self, x: Any, draws: Sequence[Draw]) -> Tensor:
        """The divergence at one context set, averaged over draws of the feature layers, if these are not linearized.

        A prior that is random is drawn with the posterior's noise: by the joint convexity of the KL, the average over
        common draws bounds that between the mixtures, and it is zero where the two agree.
        """
        needed: Sequence[Draw | None] = [] if self.linearize == "exact" else draws[: self.divergence.num_draws]
        values = []
        for draw in needed or [None]:
            noise = self.posterior.layout.views(draw.noise) if draw is not None and self.prior.is_random else None
            q = LINEARIZERS[self.linearize](self.network, self.posterior, x, draw)
            p = self.prior.gaussian(x, noise)
            values.append(self._divergence(q, p if p.mean.shape == q.mean.shape else p.joint()))
        return torch.stack(values).mean()

    def _divergence(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        return self.divergence.between(q, p)

    def function_kl(self, x_context: Any) -> Tensor:
        """The divergence of q(f(X)) from p(f(X)), summed over outputs.

        It is exact where only the last layer is stochastic, otherwise an average over new draws of the feature layers.

        Args:
            x_context: The points X. If there are outputs at every position, `num_context` random positions are taken.
        """
        x = self.check_inputs(x_context)  # may find another last layer, so the network is looked up after it
        x = self.network.at_positions(self.network.arranged(x), self.num_context)
        num = self.divergence.num_draws if self._has_random_features else 0
        return self._divergence_at(x, [self.posterior.draw() for _ in range(num)])

    def begin(self, x: Any, y: Tensor) -> None:
        """Check that the network can be linearized, and show the data to context and prior."""
        points = self.network.at_positions(self.network.arranged(x[:2]), _FEW_POSITIONS)
        check_linearization(self.linearize, self.network, self.posterior, points)
        super().begin(x, y)
