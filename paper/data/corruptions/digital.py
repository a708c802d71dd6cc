"""Digital corruptions: contrast, saturation, elastic deformation, coarse pixels, JPEG."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator

from paper.data.corruptions.blur import smooth
from paper.data.dataset import Array

if TYPE_CHECKING:
    from PIL import Image


def contrast(x: Array, factor: float, random: Generator) -> Array:
    """The difference from each channel's mean, scaled.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        factor: The scale.
        random: Not used; all corruptions take it.
    """
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * factor + mean


def saturate(x: Array, level: tuple[float, float], random: Generator) -> Array:
    """The saturation S of hue, saturation and value becomes factor · S + offset; gray has the hue of red.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        level: The pair (factor, offset).
        random: Not used; all corruptions take it.
    """
    factor, offset = level
    value = x.max(axis=-1, keepdims=True)
    chroma = value - x.min(axis=-1, keepdims=True)
    saturation = chroma / np.where(value > 0, value, 1)
    below = np.where(chroma > 0, (value - x) / np.where(chroma > 0, chroma, 1), [0.0, 1.0, 1.0])
    return value - value * (factor * saturation + offset).clip(0, 1) * below


def elastic_transform(x: Array, level: tuple[float, float, float], random: Generator) -> Array:
    """A random affine map of three corners of a square, then a smooth random displacement of every pixel.

    Args:
        x: Images.
        level: The size and the sigma of the displacement, and the largest move of a corner.
        random: The source of both.
    """
    size, sigma, reach = level
    n, height, width, _ = x.shape
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    corners = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
    moved = corners + random.uniform(-reach, reach, (n, 3, 2))
    back = np.linalg.solve(np.concatenate([moved, np.ones((n, 3, 1))], axis=-1), np.broadcast_to(corners, moved.shape))
    places = grid @ back[:, None, :2] + back[:, None, 2:]
    x = sample(x, places, _mirror)
    shift = smooth(random.uniform(-1, 1, (n, height, width, 2)), sigma, mode="reflect", truncate=3.0) * size
    return sample(x, grid + shift, _reflect)


def pixelate(x: Array, factor: float, random: Generator) -> Array:
    """Shrink by a factor and enlarge again, both with a box filter.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        factor: The factor, below 1.
        random: Not used; all corruptions take it.
    """
    from PIL import Image

    def coarse(image: Image.Image) -> Image.Image:
        small = image.resize((int(image.width * factor), int(image.height * factor)), Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.BOX)

    return _each(x, coarse)


def jpeg_compression(x: Array, quality: int, random: Generator) -> Array:
    """Encode as JPEG with a quality and decode again.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        quality: JPEG's quality.
        random: Not used; all corruptions take it.
    """
    from PIL import Image

    def stored(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(x, stored)


def sample(x: Array, places: Array, fold: Callable[[Array, int], Array]) -> Array:
    """Bilinear values of (n, height, width, channels) at places (n, height, width, 2) given as column and row."""
    low = np.floor(places).astype(int)
    (right, down), images = np.moveaxis(places - low, -1, 0), np.arange(len(x))[:, None, None]
    columns, rows = ([fold(low[..., axis] + i, x.shape[2 - axis]) for i in (0, 1)] for axis in (0, 1))
    above, below = ([x[images, row, column] for column in columns] for row in rows)
    right, down = right[..., None], down[..., None]
    return (above[0] * (1 - right) + above[1] * right) * (1 - down) + (below[0] * (1 - right) + below[1] * right) * down


def _mirror(index: Array, size: int) -> Array:
    """Indices beyond the border folded back without repeating the border: c b a b c."""
    return (size - 1) - np.abs(index % (2 * size - 2) - (size - 1))


def _reflect(index: Array, size: int) -> Array:
    """Indices beyond the border folded back with the border repeated: c b a a b c."""
    index = index % (2 * size)
    return np.minimum(index, 2 * size - 1 - index)


def _each(x: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    from PIL import Image

    images = np.rint(x * 255).astype(np.uint8)
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in images]) / 255
