"""Dense layers and convolutions as matrix products, which give every example's own gradient in closed form.

At each of its T positions a layer computes z = W ã, where ã is the patch of its input there, with a one appended for
the bias. With g the gradient of an example's scalar with respect to z, its gradient with respect to W is Σₜ gₜ ãₜᵀ: one
backward pass for the whole batch gives it for every example (Goodfellow, 2015).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.inputs import num_rows
from fsvi.networks.network import Network
from fsvi.networks.parameters import is_weight_layer

_EXAMPLES_AT_ONCE = 8
"""How many examples with many positions are in memory at once: few stay in the processor's cache."""


@dataclass(frozen=True)
class WeightLayer:
    """The trainable weight of a dense layer or a convolution, with its bias, as matrices (groups, O, D).

    A dense layer has one group. The D inputs of a convolution are the patch that one output position sees. `weight` and
    `bias` are the parameters' names in the network; `bias` is None if there is none or if it is frozen.
    """

    module: Any
    weight: str
    bias: str | None

    @property
    def names(self) -> list[str]:
        """The parameters' names in the network."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, O, D)"""
        groups, (outputs, *patch) = getattr(self.module, "groups", 1), self.module.weight.shape
        return groups, outputs // groups, math.prod(patch) + (self.bias is not None)

    def with_one(self, patches: Tensor) -> Tensor:
        """Patches with the one that the bias is multiplied by, if there is a bias."""
        return patches if self.bias is None else F.pad(patches, (0, 1), value=1.0)

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The named parameters as matrices, (groups, O, D)."""
        groups, outputs, _ = self.matrix_shape
        return torch.cat([tensors[name].reshape(groups, outputs, -1) for name in self.names], dim=-1)

    def tensors(self, matrix: Tensor) -> dict[str, Tensor]:
        """Matrices (..., groups, O, D) as the named parameters, with the same leading dimensions."""
        lead, shape = matrix.shape[:-3], self.module.weight.shape
        size = shape[1:].numel()
        named = {self.weight: matrix[..., :size].reshape(*lead, *shape)}
        return named if self.bias is None else {**named, self.bias: matrix[..., size].reshape(*lead, -1)}

    def patches(self, input: Tensor) -> Tensor:
        """What the positions see of the layer's input, (n, groups, T, D), without the one."""
        layer = self.module
        if isinstance(layer, nn.Linear):
            return input.reshape(len(input), 1, -1, input.shape[-1])
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode)
        columns = F.unfold(input, layer.kernel_size, layer.dilation, stride=layer.stride)
        return columns.unflatten(1, (layer.groups, -1)).mT

    def positions(self, gradients: Tensor) -> Tensor:
        """Gradients at the layer's outputs, (m, n, ...), as (m, n, groups, T, O)."""
        if isinstance(self.module, nn.Linear):
            return gradients.reshape(*gradients.shape[:2], 1, -1, gradients.shape[-1])
        return gradients.flatten(3).unflatten(2, (self.module.groups, -1)).mT


def weight_layers(net: nn.Module, among: Iterable[nn.Module] | None = None) -> list[WeightLayer]:
    """The dense layers and two-dimensional convolutions with a trainable weight: the network's, or those in `among`."""
    candidates = net.modules() if among is None else among
    modules: list[Any] = [module for module in candidates if is_weight_layer(module, (nn.Linear, nn.Conv2d))]
    if not modules:
        raise InvalidInputError("no dense layer or convolution that would carry the uncertainty is trainable.")
    names = {id(p): name for name, p in net.named_parameters()}
    owners = Counter(id(p) for module in net.modules() for p in module.parameters(recurse=False))
    shared = [names[id(p)] for module in modules for p in module.parameters(recurse=False) if owners[id(p)] > 1]
    if shared:
        raise InvalidInputError(
            f"several layers share the parameter {shared[0]!r}, so a layer's own curvature is not the parameter's: "
            "untie them, or use a method without curvature, such as fsvi.MFVI."
        )
    layers = []
    for module in modules:
        is_learned = module.bias is not None and module.bias.requires_grad
        layers.append(WeightLayer(module, names[id(module.weight)], names[id(module.bias)] if is_learned else None))
    return layers


class Recording:
    """The calls of some layers during one pass over a batch of `num` examples."""

    def __init__(self, num: int) -> None:
        self._num = num
        self._calls: list[tuple[WeightLayer, Tensor, Tensor]] = []
        """Every call's layer, input and output."""

    def keep(self, layer: WeightLayer, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """A hook that keeps a call of `layer`."""
        if len(args[0]) != self._num:
            raise InvalidInputError(
                f"the layer with {layer.weight!r} sees an input of shape {tuple(args[0].shape)} where the batch has "
                f"{self._num} examples: gradients of single examples need them as every input's first dimension."
            )
        self._calls.append((layer, args[0].detach(), output))
        return output.clone()  # an activation may change it in place

    @property
    def outputs(self) -> list[Tensor]:
        """The layers' outputs, in the order of the calls."""
        return [output for *_, output in self._calls]

    def gradients(self, values: Tensor, cotangents: Tensor) -> list[Tensor]:
        """The gradients of ⟨v, values⟩ by every output, (m, n, ...) each, for m cotangents v."""
        columns = [
            torch.autograd.grad(values, self.outputs, v, retain_graph=True, materialize_grads=True) for v in cotangents
        ]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]

    def pairs(self, gradients: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[WeightLayer, Tensor, Tensor]]:
        """Every layer with its patches without the one, (n, groups, T, D), and g, (m, n, groups, T, O), in `dtype`.

        `gradients` are m gradients with respect to each of `outputs`, (m, n, ...). Several calls of a layer are several
        positions. Examples with many positions come a few at a time.
        """
        for layer in dict.fromkeys(layer for layer, *_ in self._calls):
            own = [(x, g) for (each, x, _), g in zip(self._calls, gradients, strict=True) if each == layer]
            is_large = len(own) > 1 or own[0][0].dim() > 2
            step = _EXAMPLES_AT_ONCE if is_large else self._num
            for some in (slice(start, start + step) for start in range(0, self._num, step)):
                patches = [layer.patches(x[some].to(dtype)) for x, _ in own]
                positions = [layer.positions(g[:, some].to(dtype)) for _, g in own]
                yield layer, torch.cat(patches, dim=2), torch.cat(positions, dim=3)


def record(
    network: Network, params: Mapping[str, Tensor], layers: Sequence[WeightLayer], x: Tensor
) -> tuple[Tensor, Recording]:
    """The outputs of the network with a graph, and a recording of some layers."""
    weights = {layer.weight: params[layer.weight].detach().requires_grad_() for layer in layers}
    recording = Recording(num_rows(x))
    with torch.enable_grad(), ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.module.register_forward_hook(partial(recording.keep, layer)))
        return network(x, {**params, **weights}), recording


def gradient_moments(layer: WeightLayer, patches: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over examples of their gradients Σₜ gₜ ãₜᵀ, and the sum of the squared gradients, (groups, O, D) each."""
    a = layer.with_one(patches)
    if patches.shape[2] == 1:
        equation = "ngto,ngtd->god"
        return torch.einsum(equation, gradients, a), torch.einsum(equation, gradients.square(), a.square())
    rows = gradients.mT @ a
    return rows.sum(0), rows.square_().sum(0)
