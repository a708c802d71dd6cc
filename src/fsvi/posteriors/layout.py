"""Many named tensors as one flat vector, and back by views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class FlatLayout:
    """The place of each named tensor in a flat vector.

    Convolution weights are stored in channels-last order, so that their views have the memory layout in which a CPU
    convolves fastest.
    """

    shapes: dict[str, torch.Size]
    channels_last: bool = True

    @property
    def names(self) -> list[str]:
        """The tensors' names, in order."""
        return list(self.shapes)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of entries of each tensor."""
        return [shape.numel() for shape in self.shapes.values()]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensors as one vector, a copy without a graph."""
        parts = [self._to_row(tensors[name].detach()) for name in self.shapes]
        return torch.cat(parts) if parts else torch.zeros(0)

    def join(self, tensors: Iterable[Tensor]) -> Tensor:
        """The tensors in the order of `names` as one vector."""
        return torch.cat([self._to_row(tensor) for tensor in tensors])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors as views of `vector`; vectors (m, size) give tensors with a leading dimension m."""
        rows = vector.split(self.sizes, dim=-1) if self.shapes else ()
        lead, views = vector.shape[:-1], {}
        for (name, shape), row in zip(self.shapes.items(), rows, strict=True):
            if self.channels_last and len(shape) == 4:
                out, channels, height, width = shape
                views[name] = row.reshape(*lead, out, height, width, channels).movedim(-1, -3)
            else:
                views[name] = row.reshape((*lead, *shape))
        return views

    def fill(self, values: Mapping[str, float]) -> Tensor:
        """A vector that is constant on each tensor."""
        return torch.cat([torch.full((shape.numel(),), values[name]) for name, shape in self.shapes.items()])

    def _to_row(self, tensor: Tensor) -> Tensor:
        if self.channels_last and tensor.dim() == 4:
            tensor = tensor.permute(0, 2, 3, 1)
        return tensor.reshape(-1)
