"""What VOGN and IVON share: optimizers that move a mean-field posterior along its natural gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fsvi.posteriors.mean_field import MeanField


class NaturalGradient(torch.optim.Adam):
    """A rule of the method's own for the means and `log_std` of a posterior, and Adam for all other parameters.

    The `grad` of the means is the gradient of the negative log-likelihood; that of `log_std` carries what the rule
    needs to know about the curvature. So `loss.backward()` collects both, on one process or several.

    Args:
        posterior: The posterior.
        scale: The method's estimate of the curvature at every stochastic parameter, a flat vector.
        others: Parameters that are not random.
        lr: The learning rate.
        settings: The rule's other numbers.
    """

    def __init__(
        self, posterior: MeanField, scale: Tensor, others: Sequence[Tensor], lr: float, **settings: float
    ) -> None:
        self._posterior, self._scale = posterior, scale
        natural: dict[str, Any] = {"params": [*posterior.means().values(), posterior.log_std], "lr": lr, **settings}
        super().__init__([natural, {"params": list(others)}] if others else [natural], lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both rules."""
        group, q = self.param_groups[0], self._posterior
        *means, log_std = group["params"]
        if log_std.grad is not None:
            state = self.state[log_std]
            if not state:
                state.update(step=torch.zeros(()), momentum=torch.zeros_like(log_std))
            state["step"] += 1
            gradient = q.layout.join(torch.zeros_like(p) if p.grad is None else p.grad for p in means)
            change = self.update(q.layout.join(means), gradient, log_std.grad, self._scale, state, group)
            change = change if q.free is None else change.mul_(q.free)
            for mean, part in zip(means, q.layout.views(change).values(), strict=True):
                mean.sub_(part)
            log_std.copy_(self.precision(self._scale, group).log_().mul_(-0.5))
        for parameter in group["params"]:
            parameter.grad = None
        super().step()

    def update(
        self, mean: Tensor, gradient: Tensor, curvature: Tensor, scale: Tensor, state: Any, group: Any
    ) -> Tensor:
        """Move `scale` in place, and return what to subtract from the means."""
        raise NotImplementedError

    def precision(self, scale: Tensor, group: Any) -> Tensor:
        """1/σ² at this `scale`, a new tensor."""
        raise NotImplementedError


def points(method: Any) -> list[Tensor]:
    """The parameters of a method that are learned and not random."""
    stochastic = {id(p) for p in (*method.posterior.means().values(), method.posterior.log_std)}
    return [p for p in method.parameters() if p.requires_grad and id(p) not in stochastic]


class KnownGradient(torch.autograd.Function):
    """A value whose gradient by some parameters is known: KnownGradient.apply(value, gradients, *parameters)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:  # noqa: D102
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        return None, None, *(outer[0] * gradient for gradient in ctx.gradients)
