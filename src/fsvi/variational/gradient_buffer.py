"""The gradient of a mean-field posterior, summed by hand instead of by autograd."""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType

import torch
from torch import Tensor

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

    `mean`, `log_std` and `point` are the posterior's own parameters; autograd adds their gradients directly.

    Args:
        posterior: The distribution whose parameters receive the gradients.
    """

    def __init__(self, posterior: MeanField) -> None:
        self.posterior = posterior
        self.layout, self.point_layout = posterior.layout, posterior.point_layout
        self.mean, self.log_std, self.point = posterior.mean, posterior.log_std, posterior.point
        self._means, self._logs = _Leaves(self.layout, self.mean), _Leaves(self.layout, self.log_std)
        self._points = _Leaves(self.point_layout, self.point)
        self._thetas: dict[Tensor, _Leaves] = {}  # by shift, as are the directions
        self._directions: dict[Tensor, _Leaves] = {}

    def __enter__(self) -> GradientBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            return
        self.add_draws()
        gradients = [leaves.gradient for leaves in (self._means, self._logs, self._points)]  # zero where there is none
        if self.posterior.free is not None:
            gradients[0].mul_(self.posterior.free)

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
        if shift is not None and shift not in self._thetas:
            self._thetas[shift] = _Leaves(self.layout, self.mean.detach() + shift)
        leaves = self._means if shift is None else self._thetas[shift]
        return {**leaves.tensors, **self._points.tensors}

    def directions(self, shift: Tensor) -> dict[str, Tensor]:
        """`shift` by name."""
        return self._directions.setdefault(shift, _Leaves(self.layout, shift.detach())).tensors

    def log_stds(self, names: Collection[str]) -> list[Tensor]:
        """The log standard deviations of the named stochastic parameters."""
        return [self._logs[name] for name in names]

    @torch.no_grad()
    def add_draws(self) -> None:
        """Add the gradients of draws to those of the posterior, and free their memory: their graph must be gone."""
        for shift, leaves in (*self._thetas.items(), *self._directions.items()):
            if self.log_std.grad is None:
                self.log_std.grad = leaves.gradient * shift
            else:
                self.log_std.grad.addcmul_(leaves.gradient, shift)
        for leaves in self._thetas.values():
            self.mean.grad = leaves.gradient if self.mean.grad is None else self.mean.grad.add_(leaves.gradient)
        self._thetas.clear()
        self._directions.clear()


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
    def gradient(self) -> Tensor:
        """The vector's gradient."""
        return gradient_of(self._vector)


def gradient_of(leaf: Tensor) -> Tensor:
    """The gradient of a leaf of the graph, zero if it has none yet."""
    if leaf.grad is None:
        leaf.grad = torch.zeros_like(leaf)
    return leaf.grad
