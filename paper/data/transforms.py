"""Transforms from stored images to network inputs: normalization, augmentation, rotation; held-out splits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fsvi.errors import InvalidInputError


@dataclass(frozen=True)
class Normalize:
    """Normalize images: (v / 255 − mean) / std per channel, in float32; mean and std are on the scale 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, x_train: Tensor) -> Normalize:
        """The exact statistics of training images (n, channels, height, width), from counts of the 256 values."""
        values = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in x_train.unbind(1)]).double()
        weights = counts / counts.sum(1, keepdim=True)
        mean = weights @ values
        std = (weights @ values**2 - mean**2).clamp(min=0).sqrt()
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize uint8 images to float32."""
        if x.dtype != torch.uint8 or x.shape[1:2] != (len(self.mean),):
            raise InvalidInputError(
                f"images must be uint8 with {len(self.mean)} channels like the training images, not {x.dtype} "
                f"of shape {tuple(x.shape)}."
            )
        mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (self.mean, self.std))
        return x.float().div_(255).sub_(mean).div_(std)


def cropped(x: Tensor, least: float) -> Tensor:
    """A random part of each image (n, channels, height, width), at the size of the whole.

    `least` is the smallest share of the area, 0..1. Random numbers come from torch's global generator.
    """
    side = (least + (1 - least) * torch.rand(len(x))).sqrt()
    center = (2 * torch.rand(len(x), 2) - 1) * (1 - side)[:, None]
    part = torch.cat([torch.diag_embed(side[:, None].expand(-1, 2)), center[:, :, None]], 2)
    return F.grid_sample(x, F.affine_grid(part, list(x.shape), align_corners=False), align_corners=False)


def augment(x: Tensor, padding: int = 4, mode: Literal["zeros", "reflect"] = "zeros") -> Tensor:
    """Crop each image (n, channels, height, width) at random after padding it, and mirror it with probability one half.

    `padding` is the largest shift in pixels. The added pixels are "zeros", the mean of normalized images, or "reflect"
    the image at its edge. Random numbers come from torch's global generator.
    """
    n, _, height, width = x.shape
    shift = torch.randint(0, 2 * padding + 1, (2, n, 1)).to(x.device)
    flip = (torch.rand(n, 1) < 0.5).to(x.device)
    rows, columns = shift[0] + torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    columns = shift[1] + torch.where(flip, columns.flip(0), columns)
    padded = F.pad(x, [padding] * 4, mode="constant" if mode == "zeros" else mode)
    images = torch.arange(n, device=x.device)[:, None, None]
    return padded[images, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Rotate square images (n, channels, side, side) counterclockwise, with bilinear interpolation and zeros outside.

    Images of bytes are rounded.
    """
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    pixels = x if x.is_floating_point() else x.float()
    turn = pixels.new_tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = F.affine_grid(turn, [1, 1, *x.shape[-2:]], align_corners=True)
    turned = F.grid_sample(pixels, grid.expand(len(x), -1, -1, -1), padding_mode="zeros", align_corners=True)
    return turned if x.is_floating_point() else turned.round().to(x.dtype)


def splits(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split the indices 0..n − 1 at random into those to train on and a held-out fraction, each in ascending order."""
    held_out = round(n * fraction)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[held_out:].sort().values, order[:held_out].sort().values
