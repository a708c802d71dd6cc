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

    It has the methods of `MeanField` that a loss needs. The tensors that it hands out are cut off from the posterior,
    and their gradients are views of one vector, to which autograd adds in place:

        with GradientBuffer(posterior) as q:
            loss(q).backward()

    With θ = mean + d and d = exp(log_std)·ε, the gradients summed over draws are g_mean = Σ g_θ + g_μ and
    g_log_std = Σ (g_θ + g_d)·d + g. Autograd alone would create a vector as long as the network every time a tensor is
    used. A term of the loss can be differentiated, and the memory of its draws freed by `add_draws`, before the next
    one is computed. An error inside the block leaves a part of the gradient behind.

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
        if error is not None:
            return
        self.add_draws()
        gradients = [leaves.gradient for leaves in (self._means, self._logs, self._points)]  # zero where there is none
        if self.posterior.free is not None:
            gradients[0].mul_(self.posterior.free)

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

    @torch.no_grad()
    def shift(self, noise: Tensor, std: Tensor | None = None) -> Tensor:
        """θ − mean for ε = `noise`, without a graph: its gradient is collected by `params` and `directions`.

        Args:
            noise: ε.
            std: exp(log_std), if it is known.
        """
        shift = self.log_std.exp().mul_(noise) if std is None else std * noise
        return shift if self.posterior.free is None else shift.mul_(self.posterior.free)

    def params(self, shift: Tensor | None = None) -> dict[str, Tensor]:
        """The trainable parameters by name: mean + `shift`, or their means."""
        leaves = self._means if shift is None else self._draw(shift).params(self.mean)
        return {**leaves.tensors, **self._points.tensors}

    def directions(self, shift: Tensor) -> dict[str, Tensor]:
        """`shift` by name."""
        return self._draw(shift).directions.tensors

    def log_stds(self, names: Collection[str]) -> list[Tensor]:
        """The log standard deviations of the named stochastic parameters."""
        return [self._logs[name] for name in names]

    @torch.no_grad()
    def add_draws(self) -> None:
        """Add the gradients of draws to those of the posterior, and free their memory: their graph must be gone."""
        for draw in self._draws.values():
            for leaves in draw.used():
                if self.log_std.grad is None:
                    self.log_std.grad = leaves.gradient * draw.shift
                else:
                    self.log_std.grad.addcmul_(leaves.gradient, draw.shift)
            if draw.theta is not None:
                self.mean.grad = _sum(self.mean.grad, draw.theta.gradient)
        self._draws.clear()

    def _draw(self, shift: Tensor) -> _Draw:
        if id(shift) not in self._draws:
            self._draws[id(shift)] = _Draw(self.layout, shift)
        return self._draws[id(shift)]


class _Draw:
    """One draw of the parameters; it keeps `shift` alive, so that no other tensor gets its id."""

    def __init__(self, layout: Layout, shift: Tensor) -> None:
        self.shift, self._layout = shift, layout
        self.directions = _Leaves(layout, shift.detach())
        self.theta: _Leaves | None = None

    def params(self, mean: Tensor) -> _Leaves:
        """mean + shift"""
        if self.theta is None:
            self.theta = _Leaves(self._layout, mean.detach() + self.shift)
        return self.theta

    def used(self) -> list[_Leaves]:
        """The parameters, the directions, or both."""
        return [leaves for leaves in (self.theta, self.directions) if leaves is not None and leaves.is_used]


class _Leaves:
    """The tensors of a flat vector as leaves of the graph; their gradients are views of the vector's `grad`."""

    def __init__(self, layout: Layout, vector: Tensor) -> None:
        self._layout, self._vector = layout, vector
        self._used: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._used:
            leaf = self._layout.view(self._vector.detach(), name).requires_grad_()
            leaf.grad = self._layout.view(self.gradient, name)
            self._used[name] = leaf
        return self._used[name]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All leaves, by name."""
        return {name: self[name] for name in self._layout.shapes}

    @property
    def is_used(self) -> bool:
        """Whether there are leaves."""
        return bool(self._used)

    @property
    def gradient(self) -> Tensor:
        """The vector's gradient."""
        if self._vector.grad is None:
            self._vector.grad = torch.zeros_like(self._vector)
        return self._vector.grad


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    """total + part, in the memory of `total`, if there is a total."""
    return part if total is None else total.add_(part)
