"""Dense layers and convolutions as matrix products, which give every example's own gradient in closed form.

At each of its T positions a layer computes z = W ã, where ã is the patch of its input there, with a one appended for
the bias. With g the gradient of an example's scalar with respect to z, its gradient with respect to W is Σₜ gₜ ãₜᵀ: one
backward pass for the whole batch gives it for every example (Goodfellow, 2015).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.inputs import num_rows
from fsvi.networks.network import Network
from fsvi.posteriors.layer_modes import LayerMode, is_weight_layer

_ROWS_AT_ONCE = 2**24
"""The most numbers that the gradients of several examples may have together."""
_EXAMPLES_AT_ONCE = 8
"""The examples whose patches are in memory at once in a convolution without groups."""


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

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The named parameters as matrices, (groups, O, D)."""
        groups, outputs, _ = self.matrix_shape
        parts = [tensors[name].reshape(groups, outputs, -1) for name in self.names]
        return torch.cat(parts, dim=-1)

    def tensors(self, matrix: Tensor) -> dict[str, Tensor]:
        """Matrices (..., groups, O, D) as the named parameters, with the same leading dimensions."""
        lead = matrix.shape[:-3]
        fan_in = self.shape[1:].numel()
        named = {self.weight: matrix[..., :fan_in].reshape(*lead, *self.shape)}
        return named if self.bias is None else {**named, self.bias: matrix[..., fan_in].reshape(*lead, -1)}


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
    """A call of a layer.

    Attributes:
        layer: The layer.
        input: The layer's input.
        settings: The other arguments of a convolution, such as the stride.
        edge: Where in the graph its output is, whatever is done to the output in place.
        output: A tensor of the output's shape and type.
    """

    layer: WeightLayer
    input: Tensor
    settings: Settings
    edge: GradientEdge
    output: Tensor


class Recording(LayerMode):
    """A context that records the inputs and outputs of some layers.

    `edges` is what to differentiate by, one for every call of a layer; `pairs` and `moments` take the gradients.
    The weights in `params` need gradients.
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
        if layer is not None:
            self._check_examples(layer, input)
            like = output.detach().new_empty(()).expand(output.shape)
            settings = Settings(*args, **kwargs)
            self._calls.append(Call(layer, input.detach(), settings, get_gradient_edge(output), like))
            if output._is_view():  # a later change in place of a view would take its edge out of the graph
                return output.clone()
        return output

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

    def moments(self, gradients: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[dict[str, Tensor], ...]]:
        """Of every layer the sums over examples of gradients and of their squares, by parameter, in `dtype`."""
        for layer, calls in self._by_layer(gradients).items():
            if len(calls) == 1 and layer.is_convolution and layer.groups == 1:
                call, gradient = calls[0]
                yield _convolution_moments(layer, call.input.to(dtype), gradient.to(dtype), call.settings)
            else:
                patches, positions = _pair(layer, [(call, gradient[None]) for call, gradient in calls])
                total, squares = gradient_moments(patches.to(dtype), positions[0].to(dtype))
                yield layer.tensors(total), layer.tensors(squares)

    def pairs(self, gradients: Sequence[Tensor]) -> Iterator[tuple[WeightLayer, Tensor, Tensor]]:
        """Every layer with its patches ã, (n, groups, T, D), and g, (m, n, groups, T, O).

        `gradients` are m gradients with respect to each of `edges`. Several calls of a layer are several positions.
        """
        for layer, calls in self._by_layer(gradients).items():
            yield layer, *_pair(layer, calls)

    def _by_layer(self, gradients: Sequence[Tensor]) -> dict[WeightLayer, list[tuple[Call, Tensor]]]:
        """The calls of every layer, each with its gradient."""
        found: dict[WeightLayer, list[tuple[Call, Tensor]]] = {}
        for call, gradient in zip(self._calls, gradients, strict=True):
            found.setdefault(call.layer, []).append((call, gradient))
        return found

    def _check_examples(self, layer: WeightLayer, input: Tensor) -> None:
        if input.shape[0] != self._num:
            raise InvalidInputError(
                f"the layer with {layer.weight!r} sees an input of shape {tuple(input.shape)} where the batch has "
                f"{self._num} examples: gradients of single examples need them as every input's first dimension."
            )


def record(
    network: Network, params: Mapping[str, Tensor], layers: Sequence[WeightLayer], x: Tensor
) -> tuple[Tensor, Recording]:
    """The outputs of the network with a graph, and a recording of the inputs of some layers."""
    weights = {layer.weight: params[layer.weight].detach().requires_grad_() for layer in layers}
    recording = Recording(layers, weights, num_rows(x))
    with torch.enable_grad(), recording:
        return network(x, {**params, **weights}), recording


def linearize(
    network: Network, params: Mapping[str, Tensor], layers: Sequence[WeightLayer], x: Tensor
) -> tuple[Tensor, Recording, list[Tensor]]:
    """The network's outputs f, (n, Q), the recorded layers, and the derivatives of f by each layer's outputs, (Q, n,
    ...).
    """
    values, recording = record(network, params, layers, x)
    units = torch.eye(values.shape[1], dtype=values.dtype, device=values.device)
    return values.detach(), recording, recording.gradients(values, units[:, None].expand(-1, values.shape[0], -1))


def _pair(layer: WeightLayer, calls: Sequence[tuple[Call, Tensor]]) -> tuple[Tensor, Tensor]:
    patches = [_patches(layer, call.input, call.settings) for call, _ in calls]
    return torch.cat(patches, dim=2), torch.cat([_positions(layer, gradients) for _, gradients in calls], dim=3)


def _patches(layer: WeightLayer, input: Tensor, settings: Settings) -> Tensor:
    """(n, groups, T, D)"""
    if not layer.is_convolution:
        patches = input.reshape(input.shape[0], 1, -1, input.shape[-1])
    else:
        columns = _windows(layer, input, settings).movedim((4, 5), (2, 3)).flatten(4)
        patches = columns.reshape(len(input), layer.groups, -1, columns.shape[-1]).mT
    return patches if layer.bias is None else torch.cat([patches, torch.ones_like(patches[..., :1])], dim=-1)


def _convolution_moments(
    layer: WeightLayer, input: Tensor, gradient: Tensor, settings: Settings
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """As `gradient_moments`, for a convolution without groups, in channels-last order and a few examples at a time.

    Both make patches cheap: they are copied in long runs, and stay in the processor's cache.
    """
    columns = gradient.movedim(1, -1).flatten(1, 2)
    windows = _windows(layer, input, settings).permute(0, 2, 3, 4, 5, 1)
    total = squares = torch.zeros((), dtype=input.dtype, device=input.device)
    for g, a in zip(columns.split(_EXAMPLES_AT_ONCE), windows.split(_EXAMPLES_AT_ONCE), strict=True):
        rows = g.mT @ a.flatten(3).flatten(1, 2)
        total, squares = total + rows.sum(0), squares + rows.square_().sum(0)
    shape = (layer.shape[0], *layer.shape[2:], layer.shape[1])
    first, second = ({layer.weight: each.view(shape).movedim(-1, 1)} for each in (total, squares))
    if layer.bias is not None:
        rows = columns.sum(1)
        first[layer.bias], second[layer.bias] = rows.sum(0), rows.square().sum(0)
    return first, second


def _windows(layer: WeightLayer, input: Tensor, settings: Settings) -> Tensor:
    """What each output position sees, (n, channels, height, width, kernel height, kernel width)."""
    kernel, strides, dilations = layer.shape[2:], _two(settings.stride), _two(settings.dilation)
    windows = _padded(input, kernel, settings.padding, dilations)
    for dim, size, stride, dilation in zip((2, 3), kernel, strides, dilations, strict=True):
        windows = windows.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return windows


def _two(value: Any) -> Sequence[int]:
    """A setting for both dimensions; one number, or a list of one, means the same for both."""
    values = list(value) if isinstance(value, Sequence) else [value]
    return values if len(values) == 2 else values * 2


def _padded(input: Tensor, kernel: Sequence[int], padding: Any, dilations: Sequence[int]) -> Tensor:
    if padding == "valid":
        return input
    if padding != "same":
        vertical, horizontal = _two(padding)
        return F.pad(input, (horizontal, horizontal, vertical, vertical))
    wholes = [step * (size - 1) for step, size in zip(dilations, kernel, strict=True)]
    return F.pad(input, [side for whole in reversed(wholes) for side in (whole // 2, whole - whole // 2)])


def _positions(layer: WeightLayer, gradients: Tensor) -> Tensor:
    """Gradients at a layer's outputs, (m, n, ...), as (m, n, groups, T, O)."""
    m, n = gradients.shape[:2]
    if not layer.is_convolution:
        return gradients.reshape(m, n, 1, -1, gradients.shape[-1])
    return gradients.reshape(m, n, layer.groups, layer.shape[0] // layer.groups, -1).mT


def example_gradients(patches: Tensor, gradients: Tensor) -> Tensor:
    """Σₜ gₜ ãₜᵀ of every example, (n, groups, O, D), of patches (n, groups, T, D) and gradients (n, groups, T, O)."""
    return gradients.mT @ patches


def gradient_moments(patches: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over examples of their gradients, and the sum of the squared gradients, (groups, O, D) each."""
    if patches.shape[2] == 1:
        outer = partial(torch.einsum, "ngto,ngtd->god")
        return outer(gradients, patches), outer(gradients.square(), patches.square())
    size = gradients[0, :, 0].numel() * patches.shape[-1]
    step = max(1, _ROWS_AT_ONCE // size)
    chunks = zip(patches.split(step), gradients.split(step), strict=True)
    rows = (example_gradients(a, g) for a, g in chunks)
    sums = [torch.stack([part.sum(0), part.square().sum(0)]) for part in rows]
    total, squares = torch.stack(sums).sum(0)
    return total, squares
