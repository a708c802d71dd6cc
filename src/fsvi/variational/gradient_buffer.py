"""The gradient of a mean-field posterior, summed by hand instead of by autograd."""

from __future__ import annotations

from collections.abc import Collection
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
            shift = self.posterior.log_std.exp().mul_(noise)  # in place: saves a vector as long as the network
            return shift if self.posterior.free is None else shift.mul_(self.posterior.free)

    def params(self, shift: Tensor | None = None) -> dict[str, Tensor]:
        """The trainable parameters by name: mean + `shift`, or their means."""
        leaves = self._means if shift is None else self._draw(shift).params
        return {**leaves.tensors, **self._points.tensors}

    def directions(self, shift: Tensor) -> dict[str, Tensor]:
        """`shift` by name."""
        return self._draw(shift).directions.tensors

    def log_stds(self, names: Collection[str]) -> list[Tensor]:
        """The log standard deviations of the named stochastic parameters."""
        return [self._logs[name] for name in names]

    @torch.no_grad()
    def _add_gradients(self) -> None:
        """Add what the leaves have collected to the `grad` of the posterior's vectors."""
        mean, log_std = None, None
        for draw in self._draws.values():
            gradient, along = draw.params.gradient(), draw.directions.gradient()
            if along is not None:
                along = (along if gradient is None else along.add_(gradient)).mul_(draw.shift)
            elif gradient is not None:
                along = gradient * draw.shift
            log_std, mean = _sum(log_std, along), _sum(mean, gradient)
        _add(self.posterior.mean, self._means.gradient(mean))
        if self.posterior.free is not None and self.posterior.mean.grad is not None:
            self.posterior.mean.grad.mul_(self.posterior.free)
        _add(self.posterior.log_std, self._logs.gradient(log_std))
        _add(self.posterior.point, self._points.gradient())

    def _draw(self, shift: Tensor) -> _Draw:
        if id(shift) not in self._draws:
            self._draws[id(shift)] = _Draw(self.layout, self.posterior.mean.detach() + shift, shift)
        return self._draws[id(shift)]


class _Draw:
    """One draw of the parameters; it keeps `shift` alive, so that no other tensor gets its id."""

    def __init__(self, layout: Layout, vector: Tensor, shift: Tensor) -> None:
        self.shift = shift
        self.params, self.directions = _Leaves(layout, vector), _Leaves(layout, shift)


class _Leaves:
    """The tensors of a flat vector as leaves of the graph."""

    def __init__(self, layout: Layout, vector: Tensor) -> None:
        self._layout, self._vector = layout, vector.detach()
        self._used: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._used:
            self._used[name] = self._layout.view(self._vector, name).requires_grad_()
        return self._used[name]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All leaves, by name."""
        return {name: self[name] for name in self._layout.shapes}

    def gradient(self, total: Tensor | None = None) -> Tensor | None:
        """The leaves' gradients as one vector plus `total`, which is overwritten; None if there are none.

        The leaves are given up, because those of a large network need as much memory as the vector.
        """
        found = {name: leaf.grad for name, leaf in self._used.items() if leaf.grad is not None}
        rest = {name: shape for name, shape in self._layout.shapes.items() if name not in found}
        zeros = self._vector.new_zeros(())
        self._used.clear()
        del self._vector
        if not found:
            return total
        if total is None:
            return self._layout.flatten({**found, **{name: zeros.expand(shape) for name, shape in rest.items()}})
        torch._foreach_add_([self._layout.view(total, name) for name in found], list(found.values()))
        return total


def _add(parameter: nn.Parameter, gradient: Tensor | None) -> None:
    """Add to the `grad` of `parameter`, which is zero if there is no gradient at all."""
    if gradient is not None:
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    elif parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """total + part, in the memory of `total`; either may be missing."""
    return part if total is None else total if part is None else total.add_(part)
