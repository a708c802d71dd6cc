"""The mean-field Gaussian over a network's parameters."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from fsvi.networks.devices import normal
from fsvi.networks.parameters import padding_rows
from fsvi.variational.flat_vector import Layout


class MeanField(nn.Module):
    """q(θ) = N(mean, diag(exp(log_std)²)) over the stochastic parameters; the other trainable ones are points.

    Each of `mean`, `log_std` and `point` is one flat vector, so that a draw costs three tensor operations at any
    depth.

    Args:
        net: The network, whose parameters are the initial means.
        stochastic: The names of the parameters that have a distribution.
        channels_last: Whether convolution weights are kept in channels-last order.
    """

    free: Tensor | None
    """1 for entries that learn, 0 for padding rows of embeddings; None if there are no padding rows"""

    def __init__(self, net: nn.Module, stochastic: Collection[str], channels_last: bool = True) -> None:
        super().__init__()
        trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
        chosen = {name: p for name, p in trainable.items() if name in stochastic}
        points = {name: p for name, p in trainable.items() if name not in stochastic}
        self.order = [name for name, _ in net.named_parameters()]
        self.frozen = {name: p for name, p in net.named_parameters() if not p.requires_grad}
        self.layout = Layout({name: p.shape for name, p in chosen.items()}, channels_last)
        self.point_layout = Layout({name: p.shape for name, p in points.items()}, channels_last)
        self.register_buffer("free", _free_entries(net, self.layout), persistent=False)
        self.mean = nn.Parameter(self.layout.flatten(chosen))
        if self.free is not None:
            self.mean.register_hook(lambda gradient: gradient * self.free)
        self.log_std = nn.Parameter(torch.zeros_like(self.mean))
        self.point = nn.Parameter(self.point_layout.flatten(points))
        self.start: dict[str, float] = {}
        """the initial `log_std` of every stochastic tensor, set by `set_stds`"""

    def set_stds(self, stds: Mapping[str, float]) -> None:
        """Set the standard deviation of every stochastic tensor, by name."""
        self.start = {name: math.log(std) for name, std in stds.items()}
        with torch.no_grad():
            self.log_std.copy_(self.layout.fill(self.start))

    def means(self) -> dict[str, Tensor]:
        """The mean of every parameter of the network, frozen ones included, under its name in the network."""
        values = {**self.layout.views(self.mean), **self.point_layout.views(self.point), **self.frozen}
        return {name: values[name].detach().clone() for name in self.order}

    def stds(self) -> dict[str, Tensor]:
        """The standard deviation of every stochastic parameter, under its name in the network."""
        return {name: std.detach().clone() for name, std in self.layout.views(self.log_std.exp()).items()}

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """ε ~ N(0, I), independent for every stochastic parameter."""
        return normal(self.mean.shape, generator, self.mean.dtype, self.mean.device)

    def shift(self, noise: Tensor) -> Tensor:
        """θ − mean = exp(log_std)·ε for ε = `noise`, as a flat vector."""
        shift = self.log_std.exp() * noise
        return shift if self.free is None else shift * self.free

    def params(self, shift: Tensor | None = None) -> dict[str, Tensor]:
        """The trainable parameters by name: mean + `shift`, or their means."""
        vector = self.mean if shift is None else self.mean + shift
        return {**self.layout.views(vector), **self.point_layout.views(self.point)}

    def directions(self, shift: Tensor) -> dict[str, Tensor]:
        """`shift` by name."""
        return self.layout.views(shift)

    def log_stds(self, names: Collection[str]) -> list[Tensor]:
        """The log standard deviations of the named parameters, all stochastic."""
        logs = self.layout.views(self.log_std)
        return [logs[name] for name in names]


def _free_entries(net: nn.Module, layout: Layout) -> Tensor | None:
    """1 for random parameters, 0 for padding rows of embeddings; None if there are no padding rows."""
    rows = {name: row for name, row in padding_rows(net).items() if name in layout.shapes}
    if not rows:
        return None
    ones = {name: torch.ones_like(net.get_parameter(name).detach()) for name in layout.shapes}
    for name, row in rows.items():
        ones[name][row] = 0
    return layout.flatten(ones)
