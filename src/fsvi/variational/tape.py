"""The gradient of a mean-field posterior, gathered by hand."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from fsvi.variational.layout import Layout


class Tape:
    """A mean-field posterior's tensors as leaves of the graph, for one step of learning.

    With θ = mean + d and d = exp(log_std)·ε the gradients are g_mean = Σ g_θ + g_μ and g_log_std = Σ (g_θ + g_d)·d + g,
    summed over draws: two sums at the end, instead of a vector as long as the network for every use made of it.
    And a term of the loss can be differentiated, and its graph freed, before the next one is computed.
    """

    def __init__(
        self, layout: Layout, point_layout: Layout, mean: nn.Parameter, log_std: nn.Parameter, point: nn.Parameter
    ) -> None:
        self._mean, self._log_std, self._point = mean, log_std, point
        self._layout = layout
        self._means, self._logs = _Leaves(layout, mean), _Leaves(layout, log_std)
        self._points = _Leaves(point_layout, point)
        self._draws: dict[int, _Draw] = {}

    def params(self, shift: Tensor | None) -> dict[str, Tensor]:
        """The trainable parameters by name: mean + `shift`, or their means."""
        leaves = self._means if shift is None else self._draw(shift).params
        return {**leaves.tensors, **self._points.tensors}

    def directions(self, shift: Tensor) -> dict[str, Tensor]:
        """`shift` by name."""
        return self._draw(shift).directions.tensors

    def log_stds(self) -> dict[str, Tensor]:
        """log_std by name."""
        return self._logs.tensors

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add what the leaves have gathered to the `grad` of the flat vectors."""
        mean, log_std = self._means.gradient, self._logs.gradient
        for draw in self._draws.values():
            mean = mean + draw.params.gradient
            log_std = log_std + draw.shift * (draw.params.gradient + draw.directions.gradient)
        for parameter, total in ((self._mean, mean), (self._log_std, log_std), (self._point, self._points.gradient)):
            gradient = total.expand_as(parameter).contiguous()
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _draw(self, shift: Tensor) -> _Draw:
        if id(shift) not in self._draws:
            self._draws[id(shift)] = _Draw(self._layout, self._mean.detach() + shift, shift)
        return self._draws[id(shift)]


class _Draw:
    def __init__(self, layout: Layout, vector: Tensor, shift: Tensor) -> None:
        self.shift = shift
        self.params, self.directions = _Leaves(layout, vector), _Leaves(layout, shift)


class _Leaves:
    """The tensors of a flat vector, cut off from it, whose gradients gather in the flat `gradient`."""

    def __init__(self, layout: Layout, vector: Tensor) -> None:
        self._layout, self._vector = layout, vector.detach()
        self.gradient = vector.new_zeros(())

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Leaves of the graph, by name; the gradient takes memory only once they are asked for."""
        self.gradient = torch.zeros_like(self._vector)
        tensors = self._layout.views(self._vector)
        for name, part in self._layout.views(self.gradient).items():
            tensors[name].requires_grad_().grad = part
        return tensors
