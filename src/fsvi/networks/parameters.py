"""Which parameters a network has, which are frozen or deterministic, and how to draw new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from fsvi.errors import InvalidInputError

_NORMALIZATIONS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_PLAIN = (
    nn.Sequential,
    nn.Linear,
    nn.Identity,
    nn.Flatten,
    nn.LayerNorm,
    nn.modules.dropout._DropoutNd,
)
_ACTIVATIONS = "torch.nn.modules.activation"


def deterministic_names(net: nn.Module) -> set[str]:
    """Trainable parameters that are points in every posterior: the scale and shift of BatchNorm and InstanceNorm."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in net.named_modules()
        if isinstance(module, _NORMALIZATIONS)
        for name, _ in module.named_parameters(recurse=False)
    }


def batch_norms(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers that keep running statistics of the batches they see."""
    return [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def is_dense(net: nn.Module) -> bool:
    """Whether the network is a sequence of dense layers and activations, which `torch.vmap` runs fast."""
    return all(
        isinstance(module, _PLAIN)
        or (type(module).__module__ == _ACTIVATIONS and not isinstance(module, nn.MultiheadAttention))
        for module in net.modules()
    )


def freeze_parameters(net: nn.Module, freeze: bool | Sequence[str], head: Collection[str]) -> None:
    """Freeze the parameters of the layers that `freeze` names, or with True all but `head`."""
    for name in _names_to_freeze(net, freeze, head):
        net.get_parameter(name).requires_grad_(False)


def initialize(net: nn.Module) -> None:
    """Draw new values for the parameters, the way PyTorch does when it makes the layers; frozen ones stay."""
    for layer in net.modules():
        # attention names its own method with an underscore
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset) and all(p.requires_grad for p in layer.parameters()):
            reset()


def _names_to_freeze(net: nn.Module, freeze: bool | Sequence[str], head: Collection[str]) -> list[str]:
    names = [name for name, _ in net.named_parameters()]
    if isinstance(freeze, bool):
        return [name for name in names if freeze and name not in head]
    for layer in freeze:
        if not any(_is_of(name, layer) for name in names):
            known = ", ".join(names)
            raise InvalidInputError(f"freeze={layer!r} is not a layer or parameter of the network: it has {known}.")
    return [name for name in names if any(_is_of(name, layer) for layer in freeze)]


def _is_of(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")
