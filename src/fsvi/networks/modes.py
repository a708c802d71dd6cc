"""Temporarily change the modes of a network's layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from fsvi.networks.checkpoints import repeatable
from fsvi.networks.parameters import batch_norms


def evaluating(net: nn.Module) -> AbstractContextManager[None]:
    """Put `net` into eval mode: no dropout, BatchNorm uses its running statistics. Each layer's mode is restored."""
    return repeatable(lambda: _switched(net.modules(), False))


def dropping(net: nn.Module) -> AbstractContextManager[None]:
    """Switch dropout on in a network in eval mode."""
    return _switched((m for m in net.modules() if isinstance(m, nn.modules.dropout._DropoutNd)), True)


@contextmanager
def _switched(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    changed = [module for module in modules if module.training != training]
    for module in changed:
        module.training = training
    try:
        yield
    finally:
        for module in changed:
            module.training = not training


@contextmanager
def averaging_statistics(net: nn.Module, frozen: Collection[nn.Module] = ()) -> Iterator[None]:
    """Let BatchNorm's statistics become the average over the batches inside this context; other layers, and `frozen`
    ones, are in eval mode.
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
