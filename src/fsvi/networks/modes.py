"""Temporarily switch a network's layers between training and evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from fsvi.networks.checkpoints import repeatable
from fsvi.networks.parameters import batch_norms


def evaluating(net: nn.Module) -> AbstractContextManager[None]:
    """Put `net` into eval mode: no dropout, BatchNorm uses its running statistics. Each layer's mode is restored."""
    return repeatable(lambda: _evaluating(net))


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def averaging_statistics(net: nn.Module, frozen: Collection[nn.Module] = ()) -> Iterator[None]:
    """Let BatchNorm's statistics become the average over the batches inside this context; other layers are in eval
    mode.

    Args:
        net: The network.
        frozen: Layers that keep their statistics.
    """
    layers = [layer for layer in batch_norms(net) if layer not in frozen]
    momenta = [layer.momentum for layer in layers]
    with evaluating(net):
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True
        try:
            yield
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum, layer.training = momentum, False


@contextmanager
def dropping(net: nn.Module) -> Iterator[None]:
    """Switch dropout on in a network in eval mode."""
    layers = [module for module in net.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
