"""Networks described by plain values and rebuilt from them, without pickle and without importing names from files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from fsvi.errors import FileFormatError
from fsvi.networks.distance import RandomFeatures
from fsvi.networks.resnet import ResNet
from fsvi.networks.tabular import DistanceFeatures, TabularFeatures
from fsvi.networks.text import TextEncoder
from fsvi.serialization import plain
from fsvi.validation import first_line

_LAYERS: dict[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
        *(nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid),
        *(nn.Flatten, nn.Unflatten, nn.Identity),
        *(RandomFeatures, TabularFeatures, DistanceFeatures, ResNet, TextEncoder),
    )
}
_DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
_PLAIN = (bool, int, float, str, type(None))


def describe(net: nn.Module) -> dict[str, Any] | None:
    """The network as plain values; with the same parameters, what `build` makes of them has the same outputs.

    Known are `nn.Sequential`, nested to any depth, of PyTorch's common layers, and the networks of `fsvi.networks`.
    The result is None for all others: the user's own classes, and layers that share parameters, have hooks or were
    changed.
    """
    layers = None if any(map(is_altered, net.modules())) else _describe(net)
    dtype = next((p.dtype for p in net.parameters()), torch.float32)
    description = {"layers": layers, "dtype": str(dtype)}
    try:
        return description if layers is not None and _form(_sketch(description)) == _form(net) else None
    except Exception:  # a changed attribute must not prevent saving the network
        return None


def build(description: Mapping[str, Any], limit: int | None = None) -> nn.Module:
    """The network that `describe` described, with random parameters; the global random state does not change.

    A description can come from an untrusted file. Anything wrong with it raises `FileFormatError`, and so do more than
    `limit` numbers in parameters and buffers, before any memory is allocated. The memory that a pass through the
    network needs is not bounded.
    """
    sketch = _sketch(description)
    size = sum(tensor.numel() for tensor in chain(sketch.parameters(), sketch.buffers()))
    if limit is not None and size > limit:
        raise FileFormatError(f"the network described has {size} numbers, but the file holds only {limit}.")
    with torch.random.fork_rng(devices=[]):
        return _build(description)


def is_altered(module: nn.Module) -> bool:
    """Whether hooks or a replaced `forward` change what the module computes."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _describe(module: nn.Module) -> dict[str, Any] | None:
    """A layer's class, and the constructor's arguments that differ from the defaults, which layers keep as attributes.

    None stands for a module that is not known; what contains it cannot be built.
    """
    kind = type(module)
    if kind is nn.Sequential:
        children = [[name, _describe(child)] for name, child in module.named_children()]
        return {"layer": kind.__name__, "children": children}
    if _LAYERS.get(kind.__name__) is not kind:
        return None
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        value = getattr(module, name, parameter.default)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None
        if value != parameter.default:
            given[name] = _describe(value) if isinstance(value, nn.Module) else plain(value)
    return {"layer": kind.__name__, "settings": given}


def _build(description: Mapping[str, Any]) -> nn.Module:
    try:
        return _build_layer(description["layers"]).to(_DTYPES[description["dtype"]])
    except FileFormatError:
        raise
    except Exception as error:  # constructors raise all kinds of errors for wrong arguments
        raise FileFormatError(f"the network described cannot be built: {first_line(error)}.") from error


def _build_layer(description: Mapping[str, Any]) -> nn.Module:
    kind = description["layer"]
    if kind == "Sequential":
        net = nn.Sequential()
        for name, child in description["children"]:
            net.add_module(name, _build_layer(child))
        return net
    settings = {name: _setting(name, value) for name, value in description["settings"].items()}
    if kind not in _LAYERS:
        raise FileFormatError(f"the network described has a layer {kind!r}, which this version of fsvi does not know.")
    return _LAYERS[kind](**settings)


def _setting(name: str, value: Any) -> Any:
    """A constructor's argument as the layer had it: JSON turns tuples into lists."""
    if isinstance(value, dict) and "layer" in value:
        return _build_layer(value)
    if isinstance(value, list):
        return tuple(_setting(name, item) for item in value)
    if name in ("device", "dtype") or not isinstance(value, _PLAIN):
        raise FileFormatError(f"the network described has a layer with {name}={value!r}, which is not allowed.")
    return value


def _sketch(description: Mapping[str, Any]) -> nn.Module:
    """The network on the meta device, which allocates no memory for parameters."""
    with torch.device("meta"):
        return _build(description)


def _form(net: nn.Module) -> tuple[str, list[Any]]:
    """The settings of all layers, and the names, shapes and types of all tensors."""
    tensors = chain(net.named_parameters(), net.named_buffers())
    return repr(net), [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]
