"""Many named tensors as one flat vector, and back by views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The position of each named tensor in a flat vector.

    Convolution weights are stored in channels-last order, so that their views have the memory layout in which a CPU
    convolves fastest.

    Attributes:
        shapes: The tensors' shapes, by name.
        channels_last: Whether convolution weights are stored in channels-last order.
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

    @cached_property
    def _places(self) -> dict[str, tuple[torch.Size, tuple[int, ...], int]]:
        """The shape, strides and first entry of each tensor."""
        views = self.views(torch.empty(sum(self.sizes), device="meta"))
        return {name: (view.shape, view.stride(), int(view.storage_offset())) for name, view in views.items()}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """All tensors as one vector, a copy."""
        parts = [self._to_row(tensors[name]) for name in self.shapes]
        return torch.cat(parts) if parts else torch.zeros(0)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors as views of `vector`: one `split`, so that its backward is one concatenation.

        Vectors (m, size) give tensors with a leading dimension m.
        """
        if not self.shapes:
            return {}
        rows = vector.split(self.sizes, dim=-1)
        return {name: self._from_row(row, shape) for (name, shape), row in zip(self.shapes.items(), rows, strict=True)}

    def view(self, vector: Tensor, name: str) -> Tensor:
        """One of the tensors that `views` gives, in one call, of a contiguous vector without a graph."""
        shape, strides, start = self._places[name]
        return vector.as_strided(shape, strides, vector.storage_offset() + start)

    def fill(self, values: Mapping[str, float]) -> Tensor:
        """A vector that is constant on each tensor."""
        return torch.cat(
            [torch.full((size,), values[name]) for name, size in zip(self.shapes, self.sizes, strict=True)]
        )

    def _to_row(self, tensor: Tensor) -> Tensor:
        if self.channels_last and tensor.dim() == 4:
            tensor = tensor.permute(0, 2, 3, 1)
        return tensor.detach().reshape(-1)

    def _from_row(self, row: Tensor, shape: torch.Size) -> Tensor:
        lead = row.shape[:-1]
        if self.channels_last and len(shape) == 4:
            out, channels, height, width = shape
            return row.reshape(*lead, out, height, width, channels).movedim(-1, -3)
        return row.reshape((*lead, *shape))
