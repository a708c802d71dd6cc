"""Trained methods in files: written without pickle, read without running anything that the file names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fsvi.errors import FileFormatError
from fsvi.networks.description import build
from fsvi.networks.network import Network
from fsvi.serialization import METHOD, Configurable, building_from, read_tree

if TYPE_CHECKING:
    from fsvi.methods.base import Method


def as_tree(method: Method) -> dict[str, Any]:
    """A trained method as plain values and tensors, for a file of its own or for a part of another; see `from_tree`."""
    first, *others = [learner.network.description() for learner in method.learners()]
    return {
        "config": method.config(),
        "parameters": method.network.architecture(),
        "network": first if all(other == first for other in others) else None,  # what all learners share
        "input_shape": method.input_shape,
        "num_data": method.num_data,
        "tensors": method.state_dict(),
    }


def load(path: str | os.PathLike[str], net: nn.Module | Network | None = None) -> Method:
    """Read a method that `save` wrote.

    Args:
        path: The file.
        net: The network, whose parameters may have any values. It is needed unless the network is one of
            `fsvi.networks`, or an `nn.Sequential` of PyTorch's common layers, which files describe.

    Examples:
        >>> method = fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> method.save("plain.fsvi")
        >>> x = torch.randn(5, 2)
        >>> torch.equal(fsvi.load("plain.fsvi").predict(x).mean, method.predict(x).mean)
        True
    """
    return from_tree(read_tree(path, METHOD), path, net)


def from_tree(tree: Mapping[str, Any], path: str | os.PathLike[str], net: nn.Module | Network | None = None) -> Method:
    """The method that `as_tree` described; errors name `path`."""
    with building_from(path):
        is_described = net is None
        net = _network(path, tree) if net is None else net
        for saved, given in zip_longest(tree["parameters"], Network.wrap(net).architecture()):
            if saved != given:
                raise FileFormatError(f"{path} is of another architecture: it has {saved}, the network given {given}.")
        method: Method = Configurable.from_config(tree["config"], net=net)
        if is_described and method.network.output is not None:
            raise FileFormatError(f"{path} has an output setting, but describes a network that returns a tensor.")
        _fill(method, tree, path)
        return method.eval()


def _fill(method: Method, tree: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Give the method what it had learned."""
    for each in method.modules():
        if hasattr(each, "learners"):  # a method, or a part of one that is a method too
            each.num_data = tree["num_data"]
    shape = tree.get("input_shape")
    if not isinstance(shape, (list, tuple, dict, str, type(None))):
        raise FileFormatError(f"{path} has input_shape={shape!r}, which is not a shape.")
    method.input_shape = torch.Size(shape) if isinstance(shape, (list, tuple)) else shape
    broken = [name for name, tensor in tree["tensors"].items() if not bool(tensor.isfinite().all())]
    if broken:
        raise FileFormatError(f"{path} holds NaN or infinite values in {broken[0]}: train it again.")
    load_tensors(method, tree["tensors"])


def load_tensors(method: Method, tensors: Mapping[str, Tensor]) -> None:
    """Give a method the tensors of a file; buffers that are `sized_by_data` first get the file's sizes."""
    for prefix, module in method.named_modules():
        for name in getattr(module, "sized_by_data", ()):
            saved = tensors.get(f"{prefix}.{name}" if prefix else name)
            if saved is not None:
                setattr(module, name, torch.zeros_like(saved, device=method.device))
    own, given = ({name: t.shape for name, t in each.items()} for each in (method.state_dict(), tensors))
    odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if odd:
        raise FileFormatError(f"the file does not fit this network: {', '.join(odd[:3])} differ.")
    method.load_state_dict(dict(tensors))


def _network(path: str | os.PathLike[str], tree: Mapping[str, Any]) -> nn.Module:
    """The network that the file describes, no larger than what the file holds."""
    wanted = "pass the network: fsvi.load(path, net), or --net to fsvi predict."
    if tree.get("network") is None:
        raise FileFormatError(f"{path} does not describe its network, which is not made of standard layers: {wanted}")
    try:
        return build(tree["network"], limit=sum(tensor.numel() for tensor in tree["tensors"].values()))
    except FileFormatError as error:
        raise FileFormatError(f"{path} cannot be loaded by itself, as {str(error).rstrip('.')}: {wanted}") from error
