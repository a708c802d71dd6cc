"""Uncertainty after the fact: the mean stays the trained network's, only the function's variance is learned."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.contexts import Context
from fsvi.functions.contexts.general import context_points, own_context
from fsvi.likelihoods import Categorical, Gaussian, Likelihood
from fsvi.methods.base import Functions, Method
from fsvi.methods.common import check_closed_form
from fsvi.networks.devices import normal
from fsvi.networks.distance import RandomFeatures
from fsvi.networks.network import Network
from fsvi.validation import check_count, check_positive

Variances = Callable[[Tensor], Tensor]
"""A function from standardized features to variances of the function, (n, outputs) or (n, 1)."""

_PACE = 3.0
"""How much faster w learns than the other parameters: its features are small."""


class FixedMean(Method):
    """A method whose function is N(g(x), variance(x)), where g is the trained network, which never changes.

    The loss has the predictive density itself, not the expected log-likelihood: with a fixed mean, the latter is always
    largest without variance. It is N(y; g, variance + noise²) for numbers, and for classes softmax(g / √(1 + π/8 ·
    variance)).
    """

    _takes_weights = False
    center: Tensor
    spread: Tensor

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood) -> None:
        super().__init__(net, likelihood)
        check_closed_form(type(self).__name__, likelihood)

    def build(self, network: Network) -> None:
        """Freeze the network, with the statistics of its normalization layers."""
        super().build(network)
        self.net.requires_grad_(False).eval()
        like = network.linear.weight
        self.register_buffer("center", like.new_zeros(network.num_features))
        self.register_buffer("spread", like.new_ones(network.num_features))

    @torch.no_grad()
    def begin(self, x: Any, y: Tensor) -> None:
        """Take the scale of the features from training inputs."""
        features = self.network.features_of_all(x)
        self.center.copy_(features.mean(0))
        self.spread.copy_(features.std(0, correction=0).clamp_min(torch.finfo(features.dtype).eps))
        self.see((features - self.center) / self.spread)

    @abstractmethod
    def see(self, features: Tensor) -> None:
        """Start from the features of training inputs, which have mean zero and variance one."""

    def train(self, mode: bool = True) -> FixedMean:
        """The method's mode; the network stays in eval mode."""
        super().train(mode)
        self.net.eval()
        return self

    @abstractmethod
    def variances(self, features: Tensor) -> Tensor:
        """The variance of the function at standardized features, (n, outputs) or (n, 1)."""

    def prepared(self) -> Variances:
        """`variances`, with everything that does not depend on the features computed already."""
        return self.variances

    def moments(self, x: Any, variances: Variances | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function at `x`, (n, outputs) each; `variances` may be prepared."""
        features, mean = self.network.with_features(x)
        variances = self.variances if variances is None else variances
        return mean, variances((features - self.center) / self.spread).expand_as(mean)

    def predictive_nll(self, x: Any, y: Tensor) -> Tensor:
        """The mean of −log p(y|x), with the variance of the function integrated out."""
        mean, variance = self.moments(x)
        if isinstance(self.likelihood, Categorical):
            return self.likelihood.nll(probit(mean, variance), y)
        total = variance + (2 * self.likelihood._log_noise()).exp()  # type: ignore[operator]
        return Gaussian(heteroscedastic=True).nll(torch.cat([mean, total.log()], 1), y)

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """For classes one draw, the logits of the averaged probabilities; for numbers mean + std(x)·z, z shared."""
        variances = self.prepared()
        if isinstance(self.likelihood, Categorical):
            return lambda x: probit(*self.moments(x, variances)).unsqueeze(0)
        z = normal((num_samples, 1, self.network.num_outputs), generator, self.dtype, self.device)

        def draws(x: Any) -> Tensor:
            mean, variance = self.moments(x, variances)
            return mean + variance.clamp_min(0).sqrt() * z

        return draws


class FixedMeanFSVI(FixedMean):
    """FSVI with a fixed mean: −1/B Σ log p(y|x) + kl_weight · mean over context points of KL(q(f(x)) ‖ p(f(x))).

    q(f(x)) = N(g(x), Σᵢ sᵢ ψᵢ(x)² + prior_variance · sigmoid(a + b·d(x) + wᵀψ(x))). ψ are random Fourier features of
    the network's features (`RandomFeatures`), uncorrelated on the data. d is the logarithm of the Mahalanobis distance
    of the features from their mean, in standard deviations above its mean on the data; so the variance is at least
    about the prior's far away from them. sᵢ > 0, a, b > 0 and w are learned. The prior p(f(x)) = N(g(x),
    prior_variance) has the same mean: the likelihood decides on the variance where the data are, and the prior where
    the context is.

    A network is over-confident on the images it was trained on. Give `fit` augmented images instead, such as random
    crops that it has not seen.

    Args:
        net: The trained network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: `fsvi.Categorical()`, or `fsvi.Gaussian()` with one noise per output.
        context: Where the variance should be the prior's, such as corrupted images.
        num_features: The number of random features.
        prior_variance: The variance of the prior over functions.
        kl_weight: The weight of the KL in the loss.
        num_context: The number of context points per step.
    """

    precision: Tensor
    usual: Tensor

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        num_features: int = 512,
        prior_variance: float = 40.0,
        kl_weight: float = 0.05,
        num_context: int = 512,
    ) -> None:
        super().__init__(net, likelihood)
        self.context = own_context(context)
        self.num_features = check_count("num_features", num_features)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.kl_weight = check_positive("kl_weight", kl_weight, zero=True)
        self.num_context = check_count("num_context", num_context)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make the features, and start from the same variance for all of them."""
        super().build(network)
        width, like = network.num_features, network.linear.weight
        self.features = RandomFeatures(width, self.num_features).to(like)
        self.log_variance = nn.Parameter(like.new_ones(self.num_features))
        self.far = nn.Parameter(like.new_tensor([-3.0, 0.0]))  # a, log b
        self.slope = nn.Parameter(like.new_zeros(self.num_features))
        self.register_buffer("precision", torch.eye(width).to(like))
        self.register_buffer("usual", like.new_tensor([0.0, 1.0]))

    def begin(self, x: Any, y: Tensor) -> None:
        """Show training inputs to the context, too."""
        super().begin(x, y)
        if self.context is not None:
            self.context.prepare(x)

    def see(self, features: Tensor) -> None:
        """Take the length scale of the random features, and the usual distances."""
        self.features.see(features)
        num, width = features.shape
        ridge = width / num * torch.eye(width).to(features)  # the smaller, the better correlations are known
        self.precision.copy_(torch.linalg.inv(features.T @ features / num + ridge))
        logs = self._log_distances(features)
        self.usual.copy_(torch.stack([logs.mean(), logs.std(correction=0)]))

    def _log_distances(self, features: Tensor) -> Tensor:
        tiny = torch.finfo(features.dtype).eps
        return 0.5 * ((features @ self.precision) * features).sum(1).clamp_min(tiny).log()

    def variances(self, features: Tensor) -> Tensor:
        """Σᵢ sᵢ ψᵢ² + prior_variance · sigmoid(a + b·d + wᵀψ), (n, 1)."""
        mean, std = self.usual
        d = (self._log_distances(features) - mean) / std.clamp_min(torch.finfo(std.dtype).eps)
        waves = self.features(features)
        share = torch.sigmoid(self.far[0] + self.far[1].exp() * d + _PACE * (waves @ self.slope))
        return (waves.square() @ self.log_variance.exp() + self.prior_variance * share).unsqueeze(1)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The predictive negative log-likelihood, and the weighted KL between the marginals at context points."""
        points = context_points(self.network, self.context, self.num_context, x)
        ratio = self.moments(points)[1][:, 0] / self.prior_variance
        kl = 0.5 * (ratio - 1 - ratio.log()).mean()
        return {"nll": self.predictive_nll(x, y), "kl": self.kl_weight * kl}


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """The logits whose softmax is about the average of softmax(f) over f ~ N(mean, variance)."""
    return mean / (1 + math.pi / 8 * variance).sqrt()
