"""Whether two batches may go through a network as one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fsvi.inputs import Inputs, concatenate
from fsvi.networks.devices import forked_random, random_state
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network

_TOLERANCE = 1e-4
"""The largest difference that rounding may cause between batches of two sizes, relative to the largest feature."""


@torch.no_grad()
def is_joinable(network: Network, x: Inputs, others: Inputs) -> bool:
    """Whether one pass in training mode gives the features that two passes in eval mode give.

    This is tried on a few examples. It fails for BatchNorm and dropout, for a mean over the batch, for buffers that
    learn from the inputs, for networks that draw random numbers in training, and for networks that raise an error. A
    few examples cannot show everything: a layer that is still multiplied by zero is missed.

    Args:
        network: The network.
        x: Training inputs.
        others: Context points.
    """
    copies = [{name: buffer.clone() for name, buffer in network.module.named_buffers()} for _ in range(3)]
    with forked_random(network.device):
        with evaluating(network.module):
            alone = torch.cat([network.with_features(part, copies[i])[0] for i, part in enumerate((x, others))])
        before = _random_states(network)
        try:
            with _training(network):
                joined = network.with_features(concatenate([x, others]), copies[2])[0]
        except Exception:  # the model may check what it gets in any way
            return False
        drawn = before != _random_states(network)
    changed = any(not torch.equal(buffer, copies[2][name]) for name, buffer in network.module.named_buffers())
    size = alone.abs().max()
    return not drawn and not changed and bool(size > 0) and bool((joined - alone).abs().max() <= _TOLERANCE * size)


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
