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
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.inputs import num_rows
from fsvi.networks.network import Network
from fsvi.posteriors.layer_modes import LayerMode, is_weight_layer

EXAMPLES_AT_ONCE = 8
"""How many examples' own gradients are in memory at once: few stay in the processor's cache."""


@dataclass(frozen=True)
class WeightLayer:
    """The trainable weight of a dense layer or a convolution, with its bias, as matrices (groups, O, D).

    A dense layer has one group. The D inputs of a convolution are the patch that one output position sees.

    Attributes:
        weight: The weight's name in the network.
        bias: The bias's name; None if there is none or if it is frozen.
        shape: The weight's shape.
        groups: The number of groups of a convolution.
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
    def is_convolution(self) -> bool:
        """Whether it works on images, at many positions."""
        return len(self.shape) > 2

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """(groups, O, D)"""
        fan_in = self.shape[1:].numel() + (self.bias is not None)
        return self.groups, self.shape[0] // self.groups, fan_in

    def with_one(self, patches: Tensor) -> Tensor:
        """Patches with the one that the bias is multiplied by, if there is a bias."""
        return patches if self.bias is None else F.pad(patches, (0, 1), value=1.0)

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The named parameters as matrices, (groups, O, D); a patch has its channels last."""
        groups, outputs, _ = self.matrix_shape
        parts = [tensors[self.weight].movedim(1, -1), *(tensors[name] for name in self.names[1:])]
        return torch.cat([part.reshape(groups, outputs, -1) for part in parts], dim=-1)

    def tensors(self, matrix: Tensor) -> dict[str, Tensor]:
        """Matrices (..., groups, O, D) as the named parameters, with the same leading dimensions."""
        lead, size = matrix.shape[:-3], self.shape[1:].numel()
        weight = matrix[..., :size].reshape(*lead, self.shape[0], *self.shape[2:], self.shape[1])
        named = {self.weight: weight.movedim(-1, len(lead) + 1)}
        return named if self.bias is None else {**named, self.bias: matrix[..., size].reshape(*lead, -1)}


def weight_layers(net: nn.Module, among: Iterable[nn.Module] | None = None) -> list[WeightLayer]:
    """The network's dense layers and two-dimensional convolutions with a trainable weight.

    The projections inside `nn.MultiheadAttention` are not included, because it uses their weights in its own way. With
    `among`, only these modules are considered.
    """
    names = {id(p): name for name, p in net.named_parameters()}
    candidates = net.modules() if among is None else among
    modules = [module for module in candidates if is_weight_layer(module, (nn.Linear, nn.Conv2d))]
    if not modules:
        raise InvalidInputError("no dense layer or convolution that would carry the uncertainty is trainable.")
    _check_unshared(net, modules, names)
    return [_describe(module, names) for module in modules]


def _describe(module: Any, names: Mapping[int, str]) -> WeightLayer:
    trained = module.bias is not None and module.bias.requires_grad
    bias = names[id(module.bias)] if trained else None
    return WeightLayer(names[id(module.weight)], bias, module.weight.shape, getattr(module, "groups", 1))


def _check_unshared(net: nn.Module, layers: Sequence[nn.Module], names: Mapping[int, str]) -> None:
    owners = Counter(id(p) for module in net.modules() for p in module.parameters(recurse=False))
    shared = [names[id(p)] for layer in layers for p in layer.parameters(recurse=False) if owners[id(p)] > 1]
    if shared:
        raise InvalidInputError(
            f"several layers share the parameter {shared[0]!r}, so a layer's own curvature is not the parameter's: "
            "untie them, or use a method without curvature, such as fsvi.MFVI."
        )


class Settings(NamedTuple):
    """The arguments of a convolution besides its tensors, as in `F.conv2d`; a dense layer has none."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class Call(NamedTuple):
    """A call of a layer: its input and settings, where in the graph its output is, and a tensor of the output's shape.

    The place in the graph stays right whatever is done to the output in place.
    """

    layer: WeightLayer
    input: Tensor
    settings: Settings
    edge: GradientEdge
    output: Tensor


class Recording(LayerMode):
    """A context that records the inputs and outputs of some layers.

    `edges` is what to differentiate by, one for every call of a layer; `pairs` takes the gradients. The weights in
    `params` need gradients.
    """

    def __init__(self, layers: Sequence[WeightLayer], params: Mapping[str, Tensor], num: int) -> None:
        super().__init__()
        self._num = num
        self._layers = {id(params[layer.weight]): layer for layer in layers}
        self._calls: list[Call] = []

    @property
    def edges(self) -> list[GradientEdge]:
        """Where the outputs are in the graph, in the order of the calls."""
        return [call.edge for call in self._calls]

    @property
    def num_outputs(self) -> int:
        """How many numbers the recorded layers return together."""
        return sum(call.output.numel() for call in self._calls)

    def layer(self, func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the layer's output, and keep its input and its place in the graph."""
        output = func(input, weight, bias, *args, **kwargs)
        layer = self._layers.get(id(weight))
        if layer is None:
            return output
        if len(input) != self._num:
            raise InvalidInputError(
                f"the layer with {layer.weight!r} sees an input of shape {tuple(input.shape)} where the batch has "
                f"{self._num} examples: gradients of single examples need them as every input's first dimension."
            )
        like = output.detach().new_empty(()).expand(output.shape)
        self._calls.append(Call(layer, input.detach(), Settings(*args, **kwargs), get_gradient_edge(output), like))
        # A later change in place of a view would take its edge out of the graph.
        return output.clone() if output._is_view() else output

    def filled(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients by every edge, with zeros for those that do not matter."""
        pairs = zip(gradients, self._calls, strict=True)
        return [torch.zeros_like(call.output) if each is None else each for each, call in pairs]

    def gradients(self, values: Tensor, cotangents: Tensor) -> list[Tensor]:
        """The gradients of ⟨v, values⟩ by every edge, (m, n, ...) each, for m cotangents v."""
        columns = [
            self.filled(torch.autograd.grad(values, self.edges, v, retain_graph=True, allow_unused=True))
            for v in cotangents
        ]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]

    def pairs(
        self, gradients: Sequence[Tensor], dtype: torch.dtype, num: int | None = None
    ) -> Iterator[tuple[WeightLayer, Tensor, Tensor]]:
        """Every layer with its patches without the one, (n, groups, T, D), and g, (m, n, groups, T, O), in `dtype`.

        `gradients` are m gradients with respect to each of `edges`. Several calls of a layer are several positions. A
        convolution comes `num` examples at a time.
        """
        for layer in dict.fromkeys(call.layer for call in self._calls):
            calls = [(call, each) for call, each in zip(self._calls, gradients, strict=True) if call.layer == layer]
            step = num if num and layer.is_convolution else self._num
            for some in (slice(start, start + step) for start in range(0, self._num, step)):
                patches = [_patches(layer, call.input[some].to(dtype), call.settings) for call, _ in calls]
                positions = [_positions(layer, each[:, some].to(dtype)) for _, each in calls]
                yield layer, _joined(patches, dim=2), _joined(positions, dim=3)


def record(
    network: Network, params: Mapping[str, Tensor], layers: Sequence[WeightLayer], x: Tensor
) -> tuple[Tensor, Recording]:
    """The outputs of the network with a graph, and a recording of the inputs of some layers."""
    weights = {layer.weight: params[layer.weight].detach().requires_grad_() for layer in layers}
    recording = Recording(layers, weights, num_rows(x))
    with torch.enable_grad(), recording:
        return network(x, {**params, **weights}), recording


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _patches(layer: WeightLayer, input: Tensor, settings: Settings) -> Tensor:
    """(n, groups, T, D), without the one"""
    if not layer.is_convolution:
        return input.reshape(len(input), 1, -1, input.shape[-1])
    kernel = layer.shape[2:]
    strides, dilations = _two(settings.stride), _two(settings.dilation)
    wholes = [step * (size - 1) for step, size in zip(dilations, kernel, strict=True)]
    if settings.padding == "same":
        sides = [(whole // 2, whole - whole // 2) for whole in wholes]
    else:
        sides = [(size, size) for size in _two(0 if settings.padding == "valid" else settings.padding)]
    windows = F.pad(input, (*sides[1], *sides[0])).unflatten(1, (layer.groups, -1))
    for dim, whole, stride, dilation in zip((3, 4), wholes, strides, dilations, strict=True):
        windows = windows.unfold(dim, whole + 1, stride)[..., ::dilation]
    return windows.movedim(2, -1).flatten(4).flatten(2, 3)


def _two(value: Any) -> Sequence[int]:
    """A setting for both dimensions, which one number may stand for."""
    return value if isinstance(value, Sequence) else (value, value)


def _positions(layer: WeightLayer, gradients: Tensor) -> Tensor:
    """Gradients at a layer's outputs, (m, n, ...), as (m, n, groups, T, O)."""
    m, n = gradients.shape[:2]
    if not layer.is_convolution:
        return gradients.reshape(m, n, 1, -1, gradients.shape[-1])
    return gradients.flatten(3).unflatten(2, (layer.groups, -1)).mT


def example_gradients(layer: WeightLayer, patches: Tensor, gradients: Tensor) -> Tensor:
    """Σₜ gₜ ãₜᵀ of every example, (n, groups, O, D), of patches (n, groups, T, D) and gradients (n, groups, T, O)."""
    rows = gradients.mT @ patches
    return rows if layer.bias is None else torch.cat([rows, gradients.sum(2)[..., None]], dim=-1)


def gradient_moments(layer: WeightLayer, patches: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over examples of their gradients, and the sum of the squared gradients, (groups, O, D) each."""
    if patches.shape[2] == 1:
        a, equation = layer.with_one(patches), "ngto,ngtd->god"
        return torch.einsum(equation, gradients, a), torch.einsum(equation, gradients.square(), a.square())
    total = squares = patches.new_zeros(())
    for a, g in zip(patches.split(EXAMPLES_AT_ONCE), gradients.split(EXAMPLES_AT_ONCE), strict=True):
        rows = example_gradients(layer, a, g)
        total, squares = total + rows.sum(0), squares + rows.square_().sum(0)
    return total, squares
