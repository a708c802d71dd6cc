"""Layers that can be a model's last layer, where in the model's outputs they are, and points at some positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fsvi.inputs import Bundle, Inputs

Head = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class OutputLayout(NamedTuple):
    """How the outputs of a model relate to its head."""

    axis: int = -1
    """where the channels are in what the model returns: last, or 1 as in images"""
    is_moved: bool = False
    """whether the model selects, averages or reshapes positions after the head, as a classifier on the last token"""
    positions: tuple[int, ...] = ()
    """the dimensions of one example's outputs besides channels: of a text (T,), of an image (H, W), else none"""


def head_layers(module: nn.Module) -> dict[str, Head]:
    """The layers that map features to outputs at every position alone, by name: dense ones and 1×1 convolutions."""
    return {name: layer for name, layer in module.named_modules() if _is_head(layer)}


def guess_head(layers: Mapping[str, Head]) -> str:
    """The layer to assume before any input is seen: the dense layer registered last, preferably one that learns."""
    names = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)] or list(layers)
    learning = [name for name in names if layers[name].weight.requires_grad]
    return (learning or names)[-1]


def apply_head(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Outputs of features whose channels are last; the weight of a 1×1 convolution is one of a dense layer."""
    return nn.functional.linear(features, weight.flatten(1), bias)


def channels_last(values: Tensor, axis: int) -> Tensor:
    """`values` with the channels at `axis` moved to the end."""
    return values if axis == -1 or values.dim() == 2 else values.movedim(axis, -1)


def head_axis(layer: Head, outputs: Tensor, features: Tensor) -> int | None:
    """Where the channels are if `outputs` are the head's outputs at `features`, else None."""
    if features.dim() != outputs.dim():
        return None
    for axis in (-1, 1):
        moved, expected = channels_last(features, axis), channels_last(outputs, axis)
        num_outputs, num_features = layer.weight.shape[:2]
        if moved.shape[-1] != num_features or (*moved.shape[:-1], num_outputs) != expected.shape:
            continue
        values = apply_head(moved, layer.weight, layer.bias)
        if torch.allclose(values, expected, rtol=0, atol=1e-4 * float(expected.detach().abs().max())):
            return axis
    return None


@contextmanager
def recording(module: nn.Module) -> Iterator[list[Tensor]]:
    """Keep the inputs of each call of `module`."""
    inputs: list[Tensor] = []
    with module.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
        yield inputs


def replacing_output(module: nn.Module, value: Any = None) -> AbstractContextManager[Any]:
    """Let `module` return `value`, or its input if that is None."""
    return module.register_forward_hook(lambda _, args, out: args[0] if value is None else value.clone())


def _is_head(layer: nn.Module) -> bool:
    if isinstance(layer, _CONVOLUTIONS):
        ones, zeros = {*layer.kernel_size, *layer.stride, *layer.dilation, layer.groups} == {1}, layer.padding
        return ones and (zeros == "valid" or (not isinstance(zeros, str) and set(zeros) == {0}))
    return isinstance(layer, nn.Linear)


_MASK = "attention_mask"


class Positions:
    """Some positions of the outputs at `inputs`; it counts as many points as it has positions.

    The number of positions is known only when the network is called. All positions, example after example, are then
    divided into as many equal stretches as there are points, and a point is in each, at its place from 0 to below 1.
    """

    def __init__(self, inputs: Inputs, places: Tensor) -> None:
        self.inputs, self.places = inputs, places

    def __len__(self) -> int:
        return len(self.places)

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return self.inputs.device

    def select(self, values: Tensor) -> Tensor:
        """The rows of `values` (examples, positions..., channels) at the positions, (points, channels)."""
        rows = values.flatten(0, -2)
        allowed = self._unmasked(values)
        total = len(rows) if allowed is None else len(allowed)
        ends = torch.arange(len(self) + 1, device=self.places.device) * total // len(self)
        offset = (self.places * ends.diff()).long()
        index = (ends[:-1] + torch.minimum(offset, (ends.diff() - 1).clamp_min(0))).to(rows.device)
        return rows[index if allowed is None else allowed[index]]

    def _unmasked(self, values: Tensor) -> Tensor | None:
        """The positions that are not padding, if a mask of the same shape says so."""
        tree = self.inputs.tree if isinstance(self.inputs, Bundle) else None
        mask = tree.get(_MASK) if isinstance(tree, dict) else None
        if not isinstance(mask, Tensor) or mask.shape != values.shape[:-1] or not bool((mask != 0).any()):
            return None
        return (mask != 0).flatten().nonzero()[:, 0]
