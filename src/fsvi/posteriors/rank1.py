"""Mixtures of Gaussians over rank-one factors of a network's weights (Dusenberry et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.networks.devices import normal
from fsvi.posteriors.layer_modes import LayerMode, is_weight_layer
from fsvi.posteriors.mean_field import FlatLayout, normal_kl


class RankOne(nn.Module):
    """q(r, s) = 1/K Σₖ N(meanₖ, diag(exp(log_stdₖ)²)) over factors r and s of every weight layer's inputs and outputs.

    A layer with the weight W computes ((x ∘ r) Wᵀ) ∘ s + b. The factors of all layers in one component are one row of
    `mean` and of `log_std`, both (K, factors). Each factor starts at its prior's mean `centre`, which is 1, or ±1 with
    `random_signs`. Frozen layers and the projections inside attention have no factors.

    Args:
        net: The network.
        num_components: The number of components of the mixture, K.
        init_std: The initial standard deviation of the factors.
        random_signs: Whether the factors start at ±1.
        seed: The seed of the signs.
        lr_scale: The learning rate of `log_std`, as a multiple of that of the means.
    """

    centre: Tensor

    def __init__(
        self, net: nn.Module, num_components: int, init_std: float, random_signs: bool, seed: int, lr_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.lr_scale = lr_scale
        # Layers that share a weight share its factors.
        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        layers: dict[Any, tuple[str, nn.Module]] = {
            layer.weight: (name, layer) for name, layer in net.named_modules() if is_weight_layer(layer, kinds)
        }
        shapes = {}
        for weight, (name, layer) in layers.items():
            shapes[f"r of {name}"] = torch.Size([weight.shape[1] * getattr(layer, "groups", 1)])
            shapes[f"s of {name}"] = weight.shape[:1]
        self.layers, self.layout = [name for name, _ in layers.values()], FlatLayout(shapes)
        centre = torch.ones(num_components, sum(self.layout.sizes))
        if random_signs:
            centre.bernoulli_(0.5, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1)
        centre = centre.to(next(net.parameters()))
        self.register_buffer("centre", centre)
        self.mean = nn.Parameter(centre.clone())
        self.log_std = nn.Parameter(torch.full_like(centre, math.log(init_std)))

    def draw(self, components: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Factors, one row per requested component, (rows, factors).

        Args:
            components: The component of each row.
            generator: The source of random numbers; None is torch's global one.
        """
        shape = (len(components), self.mean.shape[1])
        noise = normal(shape, generator, self.mean.dtype, self.mean.device)
        # A matrix product selects rows with a backward pass that is another product, not a loop over rows.
        select = (components[:, None] == torch.arange(len(self.mean), device=noise.device)).to(noise)
        with torch.autocast(noise.device.type, enabled=False):  # half precision would round the means
            return select @ self.mean + (select @ self.log_std.exp()) * noise

    def scaling(self, net: nn.Module, factors: Tensor) -> FactorScaling:
        """The context in which `net` computes with these factors.

        Args:
            net: The network.
            factors: One row per input, or one row for all inputs.
        """
        rows = iter(self.layout.views(factors).values())
        pairs = zip(self.layers, rows, rows, strict=True)
        return FactorScaling({id(net.get_submodule(name).weight): (r, s) for name, r, s in pairs})

    def kl(self, prior_std: float) -> Tensor:
        """1/K Σₖ KL(N(meanₖ, diag(exp(log_stdₖ)²)) ‖ N(centreₖ, prior_std²·I)), an upper bound on the mixture's."""
        return normal_kl([self.mean - self.centre], self.log_std, prior_std**2) / len(self.mean)


class FactorScaling(LayerMode):
    """A context in which the inputs and outputs of layers are scaled.

    Args:
        factors: Those of the inputs, (rows, inputs), and of the outputs, (rows, outputs), by the id of the weight.
    """

    def __init__(self, factors: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._factors = factors

    def layer(self, func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """((x ∘ r) Wᵀ) ∘ s + b, where the layer has factors."""
        if id(weight) not in self._factors:
            return func(input, weight, bias, *args, **kwargs)
        r, s = self._factors[id(weight)]
        if len(r) == 1:
            return func(input, weight * _outer(r[0], s[0], weight), bias, *args, **kwargs)
        if len(r) != len(input):
            raise InvalidInputError(
                f"a layer sees an input of shape {tuple(input.shape)} where the batch has {len(r)} examples: rank-one "
                "factors differ between examples, so every weight layer needs them as its input's first dimension."
            )
        last = func is F.linear
        if weight.shape[1] == 1:  # it commutes with r, and the input needs no gradient for the sake of r
            s = s * r.repeat_interleave(weight.shape[0] // r.shape[1], dim=1)
        else:
            input = _scaled(input, r, None, last)
        return _scaled(func(input, weight, None, *args, **kwargs), s, bias, last)


def _scaled(values: Tensor, factor: Tensor, bias: Tensor | None, last: bool) -> Tensor:
    """values ∘ factor + bias, with channels in the last dimension, or in the second."""
    factor = _broadcast(factor, values.dim(), last)
    shift = None if bias is None else _broadcast(bias[None], values.dim(), last)
    return values * factor if shift is None else torch.addcmul(shift, values, factor)


def _broadcast(factor: Tensor, dim: int, last: bool) -> Tensor:
    """`factor` (rows, channels) for a tensor of `dim` dimensions, its channels in the last one, or in the second."""
    ones = (1,) * (dim - 2)
    return factor.view(len(factor), *ones, -1) if last else factor.view(len(factor), -1, *ones)


def _outer(r: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    """s rᵀ in the shape of a layer's weight, whose inputs in each of several groups have their own r."""
    groups = len(r) // weight.shape[1]
    each = s.view(groups, -1, 1) * r.view(groups, 1, -1)
    return each.reshape(*weight.shape[:2], *(1,) * (weight.dim() - 2))
