"""Dense layers and convolutions as matrix products, which give every example's own gradient in closed form.

At each of its T positions a layer computes z = W ã, where ã is the patch of its input there, with a one appended for
the bias. With g the gradient of an example's scalar with respect to z, its gradient with respect to W is Σₜ gₜ ãₜᵀ: one
backward pass for the whole batch gives it for every example (Goodfellow, 2015).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.inputs import num_rows
from fsvi.networks.network import Network
from fsvi.posteriors.layer_modes import LayerMode, is_weight_layer

_EXAMPLES_AT_ONCE = 8
"""How many examples with many positions are in memory at once: few stay in the processor's cache."""


@dataclass(frozen=True)
class WeightLayer:
    """The trainable weight of a dense layer or a convolution, with its bias, as matrices (groups, O, D).

    A dense layer has one group. The D inputs of a convolution are the patch that one output position sees. `weight` and
    `bias` are the parameters' names in the network; `bias` is None if there is none or if it is frozen.
    """

    weight: str
    bias: str | None
    shape: torch.Size
    groups: int

    @property
    def names(self) -> list[str]:
        """The parameters' names in the network."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, O, D)"""
        fan_in = self.shape[1:].numel() + (self.bias is not None)
        return self.groups, self.shape[0] // self.groups, fan_in

    def with_one(self, patches: Tensor) -> Tensor:
        """Patches with the one that the bias is multiplied by, if there is a bias."""
        return patches if self.bias is None else F.pad(patches, (0, 1), value=1.0)

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The named parameters as matrices, (groups, O, D)."""
        groups, outputs, _ = self.matrix_shape
        return torch.cat([tensors[name].reshape(groups, outputs, -1) for name in self.names], dim=-1)

    def tensors(self, matrix: Tensor) -> dict[str, Tensor]:
        """Matrices (..., groups, O, D) as the named parameters, with the same leading dimensions."""
        lead, size = matrix.shape[:-3], self.shape[1:].numel()
        named = {self.weight: matrix[..., :size].reshape(*lead, *self.shape)}
        return named if self.bias is None else {**named, self.bias: matrix[..., size].reshape(*lead, -1)}


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
        is_trained = module.bias is not None and module.bias.requires_grad
        bias = names[id(module.bias)] if is_trained else None
        layers.append(WeightLayer(names[id(module.weight)], bias, module.weight.shape, getattr(module, "groups", 1)))
    return layers


class Settings(NamedTuple):
    """The arguments of a convolution besides its tensors, as in `F.conv2d`; a dense layer has none."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class Call(NamedTuple):
    """A call of a layer."""

    layer: WeightLayer
    input: Tensor
    settings: Settings
    output: Tensor


class Recording(LayerMode):
    """A context that records the inputs and outputs of some layers, whose weights in `params` need gradients."""

    def __init__(self, layers: Sequence[WeightLayer], params: Mapping[str, Tensor], num: int) -> None:
        super().__init__()
        self._num = num
        self._layers = {id(params[layer.weight]): layer for layer in layers}
        self._calls: list[Call] = []

    @property
    def outputs(self) -> list[Tensor]:
        """The layers' outputs, in the order of the calls."""
        return [call.output for call in self._calls]

    def layer(self, func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the layer's output, and keep it with its input."""
        output = func(input, weight, bias, *args, **kwargs)
        layer = self._layers.get(id(weight))
        if layer is None:
            return output
        if len(input) != self._num:
            raise InvalidInputError(
                f"the layer with {layer.weight!r} sees an input of shape {tuple(input.shape)} where the batch has "
                f"{self._num} examples: gradients of single examples need them as every input's first dimension."
            )
        self._calls.append(Call(layer, input.detach(), Settings(*args, **kwargs), output))
        return output.clone()  # an activation may change it in place

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
        for layer in dict.fromkeys(call.layer for call in self._calls):
            calls = [(call, each) for call, each in zip(self._calls, gradients, strict=True) if call.layer == layer]
            is_large = len(calls) > 1 or calls[0][0].input.dim() > 2
            step = _EXAMPLES_AT_ONCE if is_large else self._num
            for some in (slice(start, start + step) for start in range(0, self._num, step)):
                patches = [_patches(layer, call.input[some].to(dtype), call.settings) for call, _ in calls]
                positions = [_positions(layer, each[:, some].to(dtype)) for _, each in calls]
                yield layer, torch.cat(patches, dim=2), torch.cat(positions, dim=3)


def record(
    network: Network, params: Mapping[str, Tensor], layers: Sequence[WeightLayer], x: Tensor
) -> tuple[Tensor, Recording]:
    """The outputs of the network with a graph, and a recording of some layers."""
    weights = {layer.weight: params[layer.weight].detach().requires_grad_() for layer in layers}
    recording = Recording(layers, weights, num_rows(x))
    with torch.enable_grad(), recording:
        return network(x, {**params, **weights}), recording


def _patches(layer: WeightLayer, input: Tensor, settings: Settings) -> Tensor:
    """(n, groups, T, D), without the one"""
    kernel, padding = layer.shape[2:], settings.padding
    if not kernel:
        return input.reshape(len(input), 1, -1, input.shape[-1])
    if padding == "same":
        dilation = settings.dilation if isinstance(settings.dilation, Sequence) else [settings.dilation] * 2
        rows, columns = (step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
        input = F.pad(input, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
    padding = 0 if isinstance(padding, str) else padding
    return F.unfold(input, kernel, settings.dilation, padding, settings.stride).unflatten(1, (layer.groups, -1)).mT


def _positions(layer: WeightLayer, gradients: Tensor) -> Tensor:
    """Gradients at a layer's outputs, (m, n, ...), as (m, n, groups, T, O)."""
    if len(layer.shape) > 2:
        return gradients.flatten(3).unflatten(2, (layer.groups, -1)).mT
    return gradients.reshape(*gradients.shape[:2], 1, -1, gradients.shape[-1])


def gradient_moments(layer: WeightLayer, patches: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over examples of their gradients Σₜ gₜ ãₜᵀ, and the sum of the squared gradients, (groups, O, D) each."""
    a = layer.with_one(patches)
    if patches.shape[2] == 1:
        equation = "ngto,ngtd->god"
        return torch.einsum(equation, gradients, a), torch.einsum(equation, gradients.square(), a.square())
    rows = gradients.mT @ a
    return rows.sum(0), rows.square_().sum(0)
