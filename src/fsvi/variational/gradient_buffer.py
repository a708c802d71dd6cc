"""The gradient of a mean-field posterior, gathered by hand."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from fsvi.variational.flat_vector import Layout


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
        mean, log_std = None, None
        for draw in self._draws.values():
            gradient, along = draw.params.gathered, draw.directions.gathered
            along = gradient if along is None else along if gradient is None else along.add_(gradient)
            log_std = _sum(log_std, None if along is None else along * draw.shift)
            mean = _sum(mean, gradient)
        self._means.add_gradient(self._mean, mean)
        self._logs.add_gradient(self._log_std, log_std)
        self._points.add_gradient(self._point, None)

    def _draw(self, shift: Tensor) -> _Draw:
        if id(shift) not in self._draws:
            self._draws[id(shift)] = _Draw(self._layout, self._mean.detach() + shift, shift)
        return self._draws[id(shift)]


class _Draw:
    def __init__(self, layout: Layout, vector: Tensor, shift: Tensor) -> None:
        self.shift = shift
        self.params, self.directions = _Leaves(layout, vector, whole=True), _Leaves(layout, shift, whole=True)


class _Leaves:
    """The tensors of a flat vector, cut off from it; gradients gather in a flat one where the `whole` of it is used."""

    def __init__(self, layout: Layout, vector: Tensor, whole: bool = False) -> None:
        self._layout, self._vector, self._whole = layout, vector.detach(), whole
        self.gathered: Tensor | None = None

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Leaves of the graph, by name."""
        tensors = {name: tensor.requires_grad_() for name, tensor in self._layout.views(self._vector).items()}
        if self._whole:
            self.gathered = torch.zeros_like(self._vector)
            for name, part in self._layout.views(self.gathered).items():
                tensors[name].grad = part
        return tensors

    def add_gradient(self, parameter: nn.Parameter, total: Tensor | None) -> None:
        """Add `total`, a vector to be changed at will, and the leaves' own gradients to those of `parameter`."""
        total = torch.zeros_like(parameter) if total is None else total
        for name, part in self._layout.views(total).items() if "tensors" in self.__dict__ else ():
            gradient = self.tensors[name].grad
            if gradient is not None:
                part += gradient
        parameter.grad = total if parameter.grad is None else parameter.grad + total


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """total + part, in the memory of `total`; either may be missing."""
    return part if total is None else total if part is None else total.add_(part)
