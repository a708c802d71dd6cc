"""Whether two batches may go through a network as one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fsvi.inputs import Graphs, Inputs, concatenate, example_shape
from fsvi.networks.checkpoints import repeatable
from fsvi.networks.devices import forked_random, random_state
from fsvi.networks.modes import evaluating, replacing_forward
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms

_TOLERANCE = 1e-4
"""The largest difference that rounding may cause between batches of two sizes, relative to the largest feature."""

_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


@torch.no_grad()
def is_joinable(network: Network, x: Inputs, others: Inputs) -> bool:
    """Whether one pass under `split_norms` gives the features of two: `x` in training mode, `others` in eval mode.

    This is tried on a few examples. It fails for dropout, for a mean over the batch, for buffers that learn from the
    inputs (but for BatchNorm's), for networks that draw random numbers in training, and for networks that raise an
    error. Inputs of two shapes, and graphs in networks with BatchNorm, are not joined. A few examples cannot show
    everything: a layer that is still multiplied by zero is missed.

    Args:
        network: The network.
        x: Training inputs.
        others: Context points.
    """
    norms = batch_norms(network.module)
    cuts_graphs = norms and isinstance(x, Graphs)  # rows of features are nodes, not graphs
    if cuts_graphs or example_shape(x) != example_shape(others):
        return False
    if any(type(layer).forward not in _FORWARDS for layer in norms):  # layers that do more than normalize
        return False
    one, two = ({name: buffer.clone() for name, buffer in network.module.named_buffers()} for _ in range(2))
    with forked_random(network.device):
        before = _random_states(network)
        try:
            with _training(network):
                own = network.with_features(x, two)[0]
                with split_norms(network.module, len(x)):
                    joined = network.with_features(concatenate([x, others]), one)[0]
        except Exception:  # the model may check what it gets in any way
            return False
        drawn = before != _random_states(network)
        with evaluating(network.module):
            alone = torch.cat([own, network.with_features(others, two)[0]])
    statistics = {id(buffer) for layer in norms for buffer in layer.buffers(recurse=False)}
    unchanged = all(
        torch.allclose(one[name], two[name]) if id(buffer) in statistics else torch.equal(one[name], buffer)
        for name, buffer in network.module.named_buffers()
    )
    size = alone.abs().max()
    return not drawn and unchanged and bool(size > 0) and bool((joined - alone).abs().max() <= _TOLERANCE * size)


def split_norms(net: nn.Module, num: int) -> AbstractContextManager[None]:
    """A context in which BatchNorm layers in training mode learn from, and normalize by, the first `num` rows alone.

    The other rows are treated as in eval mode, with the statistics that include the first rows. A layer is called once
    in this context; a second call is that of a checkpoint (`torch.utils.checkpoint`), and has the same statistics.

    Args:
        net: The network.
        num: The number of rows that come first.
    """
    forwards = {layer: partial(_split_forward, layer, num, []) for layer in batch_norms(net)}
    return repeatable(lambda: replacing_forward(forwards, forwards.__getitem__))


def _split_forward(layer: _BatchNorm, num: int, kept: list[Tensor | None], input: Tensor) -> Tensor:
    if not layer.training or len(input) <= num:
        return type(layer).forward(layer, input)
    own, others = input.split([num, len(input) - num])
    own = type(layer).forward(layer, own)
    if not kept:  # copies, because the backward pass reads them, and a second call changes the layer's own
        kept += [None if each is None else each.clone() for each in (layer.running_mean, layer.running_var)]
    mean, var = kept
    others = F.batch_norm(others, mean, var, layer.weight, layer.bias, mean is None, 0.0, layer.eps)
    return torch.cat([own, others])


def _random_states(network: Network) -> list[Any]:
    """The states of all random generators that a network may draw from."""
    device = random_state(network.device)
    return [random.getstate(), torch.get_rng_state().tolist(), None if device is None else device.tolist()]


@contextmanager
def _training(network: Network) -> Iterator[None]:
    """Put the network into training mode, as `fit` does; each layer's mode is restored."""
    modes = [(module, module.training) for module in network.module.modules()]
    network.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
