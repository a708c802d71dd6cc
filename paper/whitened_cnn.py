"""A compact convolutional network that learns fast: Jordan 2024, https://arxiv.org/abs/2404.00498."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_PATCH = 2
_MOST_IMAGES = 5_000
"""The images whose patches are whitened: their covariance changes little with more of them."""
_SMALLEST = 5e-4
"""Added to the eigenvalues, so that nearly constant directions are not blown up."""
_FEATURE_DIVISOR = 9


def whitened_cnn(images: Tensor, num_classes: int = 10, widths: Sequence[int] = (64, 256, 256)) -> nn.Sequential:
    """A fixed layer that whitens 2×2 patches, groups of two 3×3 convolutions with BatchNorm, and a linear head.

    Each group halves the resolution. With the default widths and images of 32×32 pixels, a pass takes 236 million
    floating-point operations per image. Convolutions start as the identity on their first channels. The first 5,000
    training images, as the network will see them, decide the first layer, which does not learn.
    """
    channels = [2 * _PATCH**2 * images.shape[1], *widths]
    first = nn.Conv2d(images.shape[1], channels[0], _PATCH, bias=False)
    first.weight.requires_grad_(False)
    first.weight.copy_(whitening_filters(images[:_MOST_IMAGES]))
    groups = [layer for pair in pairwise(channels) for layer in _group(*pair)]
    # Over a single pixel, the average with a divisor of its own is a division.
    pooled = [nn.AdaptiveMaxPool2d(1), nn.AvgPool2d(1, divisor_override=_FEATURE_DIVISOR), nn.Flatten()]
    return nn.Sequential(first, nn.GELU(), *groups, *pooled, nn.Linear(channels[-1], num_classes))


def whitening_filters(images: Tensor) -> Tensor:
    """Filters (8·channels, channels, 2, 2) whose responses on 2×2 patches of the images are uncorrelated and of nearly
    equal power, and their negatives.

    They are the eigenvectors of the patches' second moments, divided by the square roots of their eigenvalues.
    """
    channels = images.shape[1]
    moments = torch.zeros(channels * _PATCH**2, channels * _PATCH**2, dtype=torch.float64)
    count = 0
    for part in images.split(500):
        patches = F.unfold(part.float(), _PATCH).movedim(1, 2).flatten(0, 1)
        moments += (patches.T @ patches).double()
        count += len(patches)
    values, vectors = torch.linalg.eigh(moments / count)
    filters = (vectors / (values + _SMALLEST).sqrt()).T.flip(0).reshape(-1, channels, _PATCH, _PATCH).float()
    return torch.cat([filters, -filters])


def _group(in_channels: int, out_channels: int) -> list[nn.Module]:
    convolutions = [nn.Conv2d(n, out_channels, 3, padding=1, bias=False) for n in (in_channels, out_channels)]
    for convolution in convolutions:
        nn.init.dirac_(convolution.weight.data[: convolution.in_channels])
    first, second = convolutions
    norms = [nn.BatchNorm2d(out_channels) for _ in convolutions]
    return [first, nn.MaxPool2d(2), norms[0], nn.GELU(), second, norms[1], nn.GELU()]
