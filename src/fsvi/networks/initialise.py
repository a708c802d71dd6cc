"""Layers with parameters drawn anew."""

from torch import nn


def initialise(net: nn.Module) -> None:
    """Draw the parameters of the network's layers anew, the way PyTorch does when it makes them; frozen ones stay."""
    for layer in net.modules():
        # attention names its own method with an underscore
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset) and all(p.requires_grad for p in layer.parameters()):
            reset()
