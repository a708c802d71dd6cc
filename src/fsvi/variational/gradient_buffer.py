"""The gradient of a mean-field posterior, summed by hand instead of by autograd."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from types import TracebackType

import torch
from torch import Tensor, nn

from fsvi.variational.flat_vector import Layout
from fsvi.variational.mean_field import MeanField


class GradientBuffer:
    """A posterior's tensors as leaves of the graph, for one training step.

    It has the methods of `MeanField` that a loss needs. The tensors it hands out are cut off from the posterior;
    after the block, the gradients that they collected are added to those of the posterior:

        with GradientBuffer(posterior) as q:
            loss(q).backward()

    With θ = mean + d and d = exp(log_std)·ε, the gradients summed over draws are g_mean = Σ g_θ + g_μ and
    g_log_std = Σ (g_θ + g_d)·d + g. These are two sums at the end, where autograd would create a vector
    as long as the network every time a tensor is used. A term of the loss can be differentiated, and its graph freed,
    before the next one is computed.

    Args:
        posterior: The distribution whose parameters receive the gradients.
    """

    def __init__(self, posterior: MeanField) -> None:
        self.posterior = posterior
        self.layout, self.point_layout = posterior.layout, posterior.point_layout
        self._means, self._logs = _Leaves(self.layout, posterior.mean), _Leaves(self.layout, posterior.log_std)
        self._points = _Leaves(self.point_layout, posterior.point)
        self._draws: dict[int, _Draw] = {}

    def __enter__(self) -> GradientBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self._add_gradients()

    @property
    def mean(self) -> nn.Parameter:
        """The posterior's own mean; autograd adds its gradient directly."""
        return self.posterior.mean

    @property
    def log_std(self) -> nn.Parameter:
        """The posterior's own log standard deviations; autograd adds their gradient directly."""
        return self.posterior.log_std

    @property
    def point(self) -> nn.Parameter:
        """The posterior's own deterministic parameters; autograd adds their gradient directly."""
        return self.posterior.point

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """As in `MeanField`."""
        return self.posterior.noise(generator)

    def shift(self, noise: Tensor) -> Tensor:
        """θ − mean for ε = `noise`, without a graph: its gradient is collected by `params` and `directions`."""
        with torch.no_grad():
            return self.posterior.shift(noise)

    def params(self, shift: Tensor | None = None) -> dict[str, Tensor]:
        """The trainable parameters by name: mean + `shift`, or their means."""
        leaves = self._means if shift is None else self._draw(shift).params
        return {**leaves.tensors, **self._points.tensors}

    def directions(self, shift: Tensor) -> dict[str, Tensor]:
        """`shift` by name."""
        return self._draw(shift).directions.tensors

    def variances(self, names: Collection[str]) -> list[Tensor]:
        """The variances of the named stochastic parameters."""
        return [(2 * self._logs.tensors[name]).exp() for name in names]

    @torch.no_grad()
    def _add_gradients(self) -> None:
        """Add what the leaves have collected to the `grad` of the posterior's vectors."""
        mean, log_std = None, None
        for draw in self._draws.values():
            gradient, along = draw.params.collected, draw.directions.collected
            along = gradient if along is None else along if gradient is None else along.add_(gradient)
            log_std = _sum(log_std, None if along is None else along * draw.shift)
            mean = _sum(mean, gradient)
        self._means.add_gradient(self.posterior.mean, mean)
        if self.posterior.free is not None and self.posterior.mean.grad is not None:
            self.posterior.mean.grad.mul_(self.posterior.free)
        self._logs.add_gradient(self.posterior.log_std, log_std)
        self._points.add_gradient(self.posterior.point, None)

    def _draw(self, shift: Tensor) -> _Draw:
        if id(shift) not in self._draws:
            self._draws[id(shift)] = _Draw(self.layout, self.posterior.mean.detach() + shift, shift)
        return self._draws[id(shift)]


class _Draw:
    """One draw of the parameters; it keeps `shift` alive, so that no other tensor gets its id."""

    def __init__(self, layout: Layout, vector: Tensor, shift: Tensor) -> None:
        self.shift = shift
        self.params, self.directions = _Leaves(layout, vector, whole=True), _Leaves(layout, shift, whole=True)


class _Leaves:
    """The tensors of a flat vector as leaves. Their gradients are collected in one flat vector if `whole`."""

    def __init__(self, layout: Layout, vector: Tensor, whole: bool = False) -> None:
        self._layout, self._vector, self._whole = layout, vector.detach(), whole
        self.collected: Tensor | None = None

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Leaves of the graph, by name."""
        tensors = {name: tensor.requires_grad_() for name, tensor in self._layout.views(self._vector).items()}
        if self._whole:
            self.collected = torch.zeros_like(self._vector)
            for name, part in self._layout.views(self.collected).items():
                tensors[name].grad = part
        return tensors

    def add_gradient(self, parameter: nn.Parameter, total: Tensor | None) -> None:
        """Add `total`, which is overwritten, and the leaves' own gradients to the gradient of `parameter`."""
        total = torch.zeros_like(parameter) if total is None else total
        for name, part in self._layout.views(total).items() if "tensors" in self.__dict__ else ():
            gradient = self.tensors[name].grad
            if gradient is not None:
                part += gradient
        parameter.grad = total if parameter.grad is None else parameter.grad + total


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """total + part, in the memory of `total`; either may be missing."""
    return part if total is None else total if part is None else total.add_(part)
