"""What methods share that learn a mean-field posterior with natural-gradient steps: VOGN and IVON."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.export import Functions
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import mean_of
from fsvi.methods.kl_weight import KLWeight, check_kl_weight
from fsvi.methods.mean_field import RandomWeights, Stds
from fsvi.methods.network_method import NetworkMethod
from fsvi.networks.network import Network
from fsvi.validation import check_count, check_fraction, check_positive
from fsvi.posteriors import MeanField, centred_kl, normal_kl


class NaturalGradientVI(NetworkMethod):
    """q(θ) = N(μ, σ²), where σ² follows from `scale`, an estimate of the loss's curvature at every parameter.

    A step needs the gradient and an estimate of the curvature at draws from q: `differentiate`. Parameters that are not
    random, and those of the likelihood, are points and learned by Adam at the same rate.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters.
        num_samples: The number of draws per step, M.
        momentum: The momentum of the means' gradient.
        kl_weight: The weight of the KL in the loss; see `KLWeight`.
        names: Which parameters are random: a function from the network to their names.
    """

    scale: nn.Parameter

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        prior_variance: float,
        num_samples: int,
        momentum: float,
        kl_weight: KLWeight,
        names: Callable[[Network], list[str]],
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.num_samples = check_count("num_samples", num_samples)
        self.momentum = check_fraction("momentum", momentum)
        self.kl_weight = check_kl_weight(kl_weight)
        self.weights = RandomWeights(Stds(self.prior_variance**0.5), names)

    @property
    def posterior(self) -> MeanField:
        """q(θ)."""
        return self.weights.posterior

    def build(self, network: Network) -> None:
        """Make q, with the prior's variance until there is data."""
        super().build(network)
        self.posterior.log_std.requires_grad_(False)
        self.scale = nn.Parameter(torch.zeros_like(self.posterior.mean), requires_grad=False)

    # What a method says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def weight(self, num: int) -> float:
        """The weight of the KL in the loss, with N = `num` before training."""

    @abstractmethod
    def precision(self) -> Tensor:
        """1/σ² at the current `scale`, a new tensor."""

    @abstractmethod
    def differentiate(self, x: Tensor, y: Tensor, shift: Tensor) -> list[Tensor]:
        """The negative log-likelihood at μ + `shift`, its gradient, its curvature, and the gradients of `points`.

        Args:
            x: Inputs.
            y: Their targets.
            shift: The distance from the mean, as a flat vector.
        """

    # Learning -------------------------------------------------------------------------------------------------------

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL."""
        nll = self.likelihood.nll(self.weights.outputs(x, self._draws()), y)
        q = self.posterior
        return {"nll": nll, "kl": self.weight(len(x)) * normal_kl(q.mean, q.log_std, 0.0, self.prior_variance)}

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """Compute the terms, and store gradient and curvature as the gradients of the means and of `scale`."""
        q = self.posterior
        draws = [self.differentiate(x, y, shift) for shift in self._draws()]
        nll, *gradients = map(mean_of, zip(*draws, strict=True))
        for parameter, gradient in zip((q.mean, self.scale, *self.points()), gradients, strict=True):
            share = gradient if scale == 1 else scale * gradient
            parameter.grad = share if parameter.grad is None else parameter.grad + share
        kl = centred_kl(q.mean.detach(), q.log_std, q.log_std.exp().square_(), self.prior_variance)
        return {"nll": nll, "kl": self.weight(len(x)) * kl}

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Means and scale, then the points."""
        natural = {"params": [self.posterior.mean, self.scale], "lr": lr, "momentum": self.momentum}
        points = self.points()
        return [natural, {"params": points, "lr": lr}] if points else [natural]

    def after_step(self) -> None:
        """Update σ from `scale`."""
        with torch.no_grad():
            torch.mul(self.precision().log_(), -0.5, out=self.posterior.log_std)

    def points(self) -> list[Tensor]:
        """The parameters that are learned and not random."""
        return [p for p in (self.posterior.point, *self.likelihood.parameters()) if p.numel()]

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The network's outputs for draws of its parameters."""
        return self.draw_functions(self.weights.draws(num_samples, generator), x, batch_size)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The network's outputs for draws of its parameters."""
        return self.fixed_functions(self.weights.draws(num_samples, generator))

    def _draws(self) -> list[Tensor]:
        q = self.posterior
        return [q.shift(q.noise()) for _ in range(self.num_samples)]


class NaturalGradient(torch.optim.Adam):
    """The method's own rule for the two parameters of the first group, means and scale; Adam for all others."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both."""
        group = self.param_groups[0]
        mean, scale = group["params"]
        state = self.state[mean]
        if not state:
            state.update(step=torch.zeros(()), momentum=torch.zeros_like(mean))
        state["step"] += 1
        self.update(mean, scale, state, group)
        mean.grad = scale.grad = None
        super().step()

    def update(self, mean: Tensor, scale: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """Move `mean` and `scale`.

        Args:
            mean: The means; their `grad` is the gradient.
            scale: The scale; its `grad` is the curvature.
            state: The number of steps and the momentum.
            group: The settings of the first group.
        """
        raise NotImplementedError
