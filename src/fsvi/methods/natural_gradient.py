"""What VOGN and IVON share: mean-field variational inference in natural gradient steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.divergences import KLWeight, check_kl_weight, kl_weight_value
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import MeanField, normal_kl
from fsvi.validation import check_count, check_fraction, check_positive


class NaturalGradient(Method):
    """A method with update rules of its own for a mean-field posterior: for its means, and for a curvature `scale`.

    In training, the `grad` of the means is the gradient of the negative log-likelihood; that of `log_std` carries what
    the rule needs to know about the curvature. So `loss.backward()` collects both, on one process or several.
    """

    posterior: MeanField
    scale: Tensor
    """The estimate of the curvature at every random parameter, a flat vector."""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        prior_variance: float,
        num_samples: int,
        momentum: float,
        scale_rate: float,
        kl_weight: KLWeight,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.num_samples = check_count("num_samples", num_samples)
        self.momentum = check_fraction("momentum", momentum)
        self.scale_rate = check_positive("scale_rate", scale_rate)
        self.kl_weight = check_kl_weight(kl_weight)

    @classmethod
    def _optimizer_of(cls, methods: Sequence[NaturalGradient], lr: float) -> torch.optim.Optimizer:
        return NaturalSteps(methods, lr)

    @abstractmethod
    def update(self, mean: Tensor, gradient: Tensor, curvature: Tensor, momentum: Tensor, step: int) -> Tensor:
        """Move `scale` and the vector `momentum` in place, and return the direction that the means go down.

        Args:
            mean: The means, a flat vector as all others.
            gradient: Their `grad`.
            curvature: The `grad` of `log_std`.
            momentum: What the rule keeps from step to step, zeros at first.
            step: The number of the step, from 1 on.
        """

    @abstractmethod
    def precision(self) -> Tensor:
        """1/σ² at the present `scale`."""

    def points(self) -> list[Tensor]:
        """The parameters that are learned and not random."""
        stochastic = {id(p) for p in (*self.posterior.means().values(), self.posterior.log_std)}
        return [p for p in self.parameters() if p.requires_grad and id(p) not in stochastic]

    def _weight(self, num: int) -> float:
        """The weight of the KL, with N = `num` if there is no number of data."""
        return kl_weight_value(self.kl_weight, self.num_data or num)

    def _delta(self) -> float:
        """The prior's share in the precision, per unit of `scale`."""
        return self._weight(1) / self.prior_variance

    def _kl(self, num: int) -> Tensor:
        """The weighted KL, whose gradient the update rule knows."""
        q = self.posterior
        kl = normal_kl((mean.detach() for mean in q.means().values()), q.log_std.detach(), self.prior_variance)
        return self._weight(num) * kl


class NaturalSteps(torch.optim.Adam):
    """The methods' rules for the means and `log_std` of their posteriors, and Adam for all other parameters."""

    def __init__(self, methods: Sequence[NaturalGradient], lr: float) -> None:
        self._methods = methods
        natural = [[*method.posterior.means().values(), method.posterior.log_std] for method in methods]
        points = [p for method in methods for p in method.points()]
        super().__init__([{"params": params} for params in (*natural, points)], lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all rules."""
        for method, group in zip(self._methods, self.param_groups, strict=False):
            self._natural_step(method, group)
        super().step()

    def _natural_step(self, method: NaturalGradient, group: dict[str, Any]) -> None:
        q, (*means, log_std) = method.posterior, group["params"]
        if log_std.grad is not None:
            state = self.state[log_std]
            if not state:
                state.update(step=torch.zeros(()), momentum=torch.zeros_like(log_std))
            state["step"] += 1
            gradient = q.layout.join(torch.zeros_like(p) if p.grad is None else p.grad for p in means)
            rule = q.layout.join(means), gradient, log_std.grad, state["momentum"], int(state["step"])
            change = group["lr"] * method.update(*rule)
            change = change if q.free is None else change.mul_(q.free)
            for mean, part in zip(means, q.layout.views(change).values(), strict=True):
                mean.sub_(part)
            log_std.copy_(method.precision().log_().mul_(-0.5))
        for parameter in group["params"]:
            parameter.grad = None
