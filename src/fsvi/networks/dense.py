"""Which networks are plain stacks of dense layers."""

from __future__ import annotations

from torch import nn

_PLAIN = (
    nn.Sequential,
    nn.Linear,
    nn.Identity,
    nn.Flatten,
    nn.LayerNorm,
    nn.modules.dropout._DropoutNd,
)
_ACTIVATIONS = "torch.nn.modules.activation"


def is_dense(net: nn.Module) -> bool:
    """Whether `torch.vmap` over parameters runs the network, and fast: dense layers and activations in sequence."""
    return all(
        isinstance(module, _PLAIN)
        or (type(module).__module__ == _ACTIVATIONS and not isinstance(module, nn.MultiheadAttention))
        for module in net.modules()
    )
