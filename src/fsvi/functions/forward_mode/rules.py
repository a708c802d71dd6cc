"""The derivative of a sequence of layers along a direction of their parameters, layer by layer.

`torch.func.jvp` computes it for any network, but it also propagates inputs that do not change, adds derivatives that
are zero, and makes many small calls per layer. For common layers, the rule is a line or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional as F

from fsvi.functions.forward_mode.kernels import plain_kernels
from fsvi.networks.description import is_altered
from fsvi.networks.functional import functional_call
from fsvi.networks.network import Network

Tensors = Mapping[str, Tensor]


class Dual(NamedTuple):
    """A value and its derivative along a direction.

    Attributes:
        value: The value.
        change: The derivative; None if the value does not change.
    """

    value: Tensor
    change: Tensor | None


Rule = Callable[[Any, Tensors, Tensors, Dual], Dual]
"""A layer, its parameters, the directions in which they move, and its input; gives its output."""


def feature_layers(network: Network) -> list[nn.Module] | None:
    """The layers before the head if the network is a plain sequence that ends in the head; None otherwise."""
    *layers, last = _flattened(network.module)
    plain = last is network.linear and last not in layers and not is_altered(last)
    return layers if plain and not any(getattr(layer, "return_indices", False) for layer in layers) else None


def layers_jvp(net: nn.Module, layers: list[nn.Module], params: Tensors, tangents: Tensors, x: Tensor) -> Dual:
    """The output of some layers in eval mode, and its derivative along `tangents`.

    Args:
        net: The network that the layers belong to.
        layers: The layers, in order.
        params: Parameters by their names in `net`; layers keep their own for names that are missing.
        tangents: The direction, by the same names.
        x: Inputs of the first layer.
    """
    names = {id(p): name for name, p in net.named_parameters()}
    state = Dual(x, None)
    for layer in layers:
        own = {key: names[id(p)] for key, p in layer.named_parameters()}
        values, own_tangents = (
            {key: tensors[name] for key, name in own.items() if name in tensors} for tensors in (params, tangents)
        )
        state = _rule(layer)(layer, values, own_tangents, state)
    return state


def _rule(layer: nn.Module) -> Rule:
    watched = is_altered(layer) or layer._backward_hooks or layer._backward_pre_hooks
    if watched or getattr(layer, "padding_mode", "zeros") != "zeros":
        return _any_layer
    return _RULES.get(type(layer), _any_layer)


def _flattened(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested sequences, in their order; one that occurs twice comes twice."""
    if type(module) is not nn.Sequential or is_altered(module):
        yield module
        return
    for child in module:
        yield from _flattened(child)


def _any_layer(layer: nn.Module, params: Tensors, tangents: Tensors, x: Dual) -> Dual:
    buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}

    def call(moving: Tensors, value: Tensor) -> Tensor:
        return functional_call(layer, {**params, **buffers, **moving}, (value,))

    if x.change is None and not tangents:
        return Dual(call({}, x.value), None)
    start = {name: params[name] for name in tangents}
    with plain_kernels(layer):
        if x.change is None:
            return Dual(*jvp(lambda moving: call(moving, x.value), (start,), (dict(tangents),)))
        return Dual(*jvp(call, (start, x.value), (dict(tangents), x.change)))


def _affine(apply: Callable[[Any, Tensor, Tensor, Tensor | None], Tensor]) -> Rule:
    """y = w x + b: dy = dw x + db + w dx"""

    def rule(layer: Any, params: Tensors, tangents: Tensors, x: Dual) -> Dual:
        if tangents and "weight" not in tangents:  # a frozen weight
            return _any_layer(layer, params, tangents, x)
        weight = params.get("weight", layer.weight)
        value = apply(layer, x.value, weight, params.get("bias", layer.bias))
        change = apply(layer, x.value, tangents["weight"], tangents.get("bias")) if tangents else None
        if x.change is not None:
            through = apply(layer, x.change, weight, None)
            change = through if change is None else change + through
        return Dual(value, change)

    return rule


def _convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def _activation(derivative: Callable[[Tensor], Tensor]) -> Rule:
    """y = f(x): dy = f'(x) dx, with f' as a function of y"""

    def rule(layer: nn.Module, params: Tensors, tangents: Tensors, x: Dual) -> Dual:
        value = layer(x.value)
        return Dual(value, None if x.change is None else x.change * derivative(value))

    return rule


def _linear_map(layer: nn.Module, params: Tensors, tangents: Tensors, x: Dual) -> Dual:
    return Dual(layer(x.value), None if x.change is None else layer(x.change))


def _max_pool(layer: nn.MaxPool2d, params: Tensors, tangents: Tensors, x: Dual) -> Dual:
    """The change of what is largest."""
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
    if x.change is None:
        return Dual(F.max_pool2d(x.value, *settings), None)
    value, places = F.max_pool2d(x.value, *settings, return_indices=True)
    return Dual(value, _pick(x.change, places))


def _pick(images: Tensor, places: Tensor) -> Tensor:
    """The pixels at `places`, which count through a channel; without a copy where channels come last in memory."""
    if images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last):
        pixels, order = (t.permute(0, 2, 3, 1) for t in (images, places))
        return pixels.flatten(1, 2).gather(1, order.flatten(1, 2)).view(order.shape).permute(0, 3, 1, 2)
    return images.flatten(-2).gather(-1, places.flatten(-2)).view(places.shape)


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _affine(lambda layer, x, weight, bias: F.linear(x, weight, bias)),
    nn.Conv2d: _affine(_convolve),
    nn.ReLU: _activation(lambda y: y.detach().sign()),
    nn.Tanh: _activation(lambda y: 1 - y.square()),
    nn.MaxPool2d: _max_pool,
    **dict.fromkeys((nn.Flatten, nn.Identity, nn.Dropout, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _linear_map),
}
