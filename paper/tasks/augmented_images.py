"""Images that are augmented when a batch is fetched."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from paper import data


class AugmentedImages(TorchDataset[tuple[Tensor, Tensor]]):
    """Images and labels. A batch fetched by a DataLoader is cropped and mirrored at random.

    A single item is returned unchanged, so that what a method learns about the data before training comes from the
    true images. Random numbers come from torch's global generator, whose state checkpoints keep.
    """

    def __init__(self, x: Tensor, y: Tensor, shift: int = 4, edges: Literal["zeros", "reflect"] = "zeros") -> None:
        self.x, self.y, self.shift, self.edges = x, y, shift, edges

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        augmented = data.augment(self.x[indices], padding=self.shift, mode=self.edges)
        return list(zip(augmented, self.y[indices], strict=True))
