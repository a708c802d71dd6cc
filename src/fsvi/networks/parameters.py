"""Which parameters a network has, which are frozen or deterministic, and how to draw new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError

Norm = nn.modules.batchnorm._NormBase
"""What BatchNorm and InstanceNorm have in common."""
_PLAIN = (nn.Sequential, nn.Linear, nn.Identity, nn.Flatten, nn.LayerNorm, nn.modules.dropout._DropoutNd)
_ACTIVATIONS = "torch.nn.modules.activation"


def deterministic_names(net: nn.Module) -> set[str]:
    """Trainable parameters that are points in every posterior: the scale and shift of BatchNorm and InstanceNorm."""
    points = {id(p) for module in net.modules() if isinstance(module, Norm) for p in module.parameters()}
    return {name for name, p in net.named_parameters() if id(p) in points}


def batch_norms(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers that keep running statistics of the batches they see."""
    return [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def is_weight_layer(module: Any, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether it has a trainable weight and is of one of these kinds.

    The projections inside `nn.MultiheadAttention` are not, because it uses their weights in its own way.
    """
    inside_attention = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return isinstance(module, kinds) and not inside_attention and bool(module.weight.requires_grad)


def padding_rows(net: nn.Module) -> dict[str, int]:
    """The row of every embedding that stands for padding, by the name of the embedding's weight.

    PyTorch never trains this row. So it has no distribution in a posterior, no prior pulls it, and it keeps its value.
    """
    names = {id(p): name for name, p in net.named_parameters()}
    embeddings = [m for m in net.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    return {names[id(m.weight)]: m.padding_idx for m in embeddings if m.padding_idx is not None}


def hold_padding_rows(net: nn.Module) -> None:
    """Keep gradients away from the rows of embeddings that stand for padding, wherever they come from."""
    for name, row in padding_rows(net).items():
        weight = net.get_parameter(name)
        if weight.requires_grad:
            weight.register_hook(lambda gradient, row=row: _without_row(gradient, row))


def _without_row(gradient: Tensor, row: int) -> Tensor:
    gradient = gradient.clone()
    gradient[row] = 0
    return gradient


def is_dense_stack(net: nn.Module) -> bool:
    """Whether the network is a sequence of dense layers and activations, which `torch.vmap` runs fast."""
    return all(
        isinstance(module, _PLAIN)
        or (type(module).__module__ == _ACTIVATIONS and not isinstance(module, nn.MultiheadAttention))
        for module in net.modules()
    )


def freeze_parameters(net: nn.Module, freeze: bool | Sequence[str], head: Collection[str]) -> None:
    """Freeze the layers or parameters of these names; with True all but those of the last layer, `head`."""
    if isinstance(freeze, bool):
        chosen = [name for name, _ in net.named_parameters() if freeze and name not in head]
    else:
        chosen = [name for layer in freeze for name in _named(net, "freeze", layer)]
    for name in chosen:
        net.get_parameter(name).requires_grad_(False)


def initialize(net: nn.Module) -> None:
    """Draw new values for the parameters, the way PyTorch does when it makes the layers; frozen ones stay.

    Parameters that no layer resets, such as class tokens, are drawn from a normal distribution with the mean and the
    standard deviation of their present values: how they were initialized is not known, but their scale is. A single
    number has no standard deviation and stays, and so do the padding rows of embeddings.
    """
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    own: set[int] = set()
    for layer in net.modules():
        # attention names its own method with an underscore
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset):
            own |= {id(p) for p in layer.parameters(recurse=False)}
            if all(p.requires_grad for p in layer.parameters()):
                reset()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.requires_grad and id(p) not in own and torch.equal(p, before[name]) and p.numel() > 1:
                p.normal_(float(p.mean()), float(p.std()))
        for name, row in padding_rows(net).items():
            net.get_parameter(name)[row] = before[name][row]


def matching_names(
    net: nn.Module, patterns: Sequence[str], learned: Collection[str], always: Collection[str] = ()
) -> list[str]:
    """The names among `learned` that one of `patterns` matches, and those in `always`, in the network's order.

    A pattern is the name of a layer or of a parameter, or a glob such as "layer4.*" or "*lora_A*".
    """
    chosen = set(always)
    for pattern in patterns:
        found = _named(net, "stochastic", pattern)
        if not any(name in learned for name in found):
            raise InvalidInputError(
                f"stochastic={pattern!r} matches only parameters that have no distribution, such as {found[0]!r}: "
                "they are frozen, or the scale and shift of BatchNorm."
            )
        chosen |= {name for name in found if name in learned}
    return [name for name, _ in net.named_parameters() if name in chosen]


def _named(net: nn.Module, argument: str, pattern: str) -> list[str]:
    """The parameters that a pattern matches, or a layer that they are in; an error names the `argument` it is from."""
    names = [name for name, _ in net.named_parameters()]
    found = [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
    if not found:
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InvalidInputError(f"{argument}={pattern!r} matches no parameter of the network: it has {known}.")
    return found
