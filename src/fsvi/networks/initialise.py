"""Layers with parameters drawn anew."""

from collections.abc import Iterable

from torch import nn


def initialise(layers: Iterable[nn.Module]) -> None:
    """Draw the layers' parameters anew, the way PyTorch does when it makes them."""
    for layer in layers:
        # attention names its own method with an underscore
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset):
            reset()
