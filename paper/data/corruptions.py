"""The corruptions of CIFAR-10-C, implemented from their published definitions.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR
2019, define 15 kinds and 4 extra ones, each at five severities. The parameters are those for CIFAR-10. Two kinds are
missing: `frost`, which needs photographs of ice, and `spatter`, which is defined by an image library's routines for
edges and distances. Random draws differ from those of the released files, so results must be labeled as regenerated.

Each corruption is a function of images in 0..1, (n, height, width, channels), a level, and a random generator.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image
from scipy import ndimage
from torch import Tensor

from fsvi.validation import check_choice

Array = np.typing.NDArray[Any]
_LUMA = np.array([0.299, 0.587, 0.114])
_CHUNK = 1000


def corrupt(x: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupted copies of CIFAR images (n, 3, 32, 32) uint8, by one of `CORRUPTIONS`.

    The severity is from 1 (mildest) to 5. Values are clipped to 0..255 and truncated, as in the released files.
    """
    change, levels = _SEVERITIES[check_choice("kind", kind, CORRUPTIONS)]
    random = np.random.default_rng(seed)
    chunks = (chunk.permute(0, 2, 3, 1).numpy() / 255 for chunk in x.cpu().split(_CHUNK))
    changed = [_to_bytes(change(chunk, levels[severity - 1], random)) for chunk in chunks]
    return torch.cat([torch.from_numpy(images) for images in changed]).permute(0, 3, 1, 2).contiguous()


def _to_bytes(x: Array) -> Array:
    # Floating-point rounding must not lower a whole number of 255ths to the number below it.
    return np.floor(x.clip(0, 1) * 255 + 1e-6).astype(np.uint8)


def gaussian_noise(x: Array, scale: float, random: Generator) -> Array:
    """x + ε with ε ~ N(0, scale²)."""
    return x + random.normal(scale=scale, size=x.shape)


def shot_noise(x: Array, photons: float, random: Generator) -> Array:
    """Poisson(x · photons) / photons."""
    return random.poisson(x * photons) / photons


def impulse_noise(x: Array, amount: float, random: Generator) -> Array:
    """A fraction `amount` of all values becomes 0 or 1, each with probability one half."""
    hit, salt = random.random(x.shape) < amount, random.random(x.shape) < 0.5
    noisy = x.copy()
    noisy[hit] = salt[hit]
    return noisy


def speckle_noise(x: Array, scale: float, random: Generator) -> Array:
    """x + x ε with ε ~ N(0, scale²)."""
    return x + x * random.normal(scale=scale, size=x.shape)


def gaussian_blur(x: Array, sigma: float, random: Generator) -> Array:
    """A Gaussian filter over height and width; the border is repeated."""
    return smooth(x, sigma)


def glass_blur(x: Array, level: tuple[float, int], random: Generator) -> Array:
    """Each pixel takes the color of a near one, between two Gaussian blurs; the first two rows and columns stay.

    The level is the sigma of the blurs and the number of moves. The published definition swaps pixels in place, but
    the code that made the released images copies them instead.
    """
    sigma, repeats = level
    x = np.floor(smooth(x, sigma) * 255) / 255
    images, (rows, columns) = np.arange(len(x))[:, None, None], (np.arange(2, size) for size in x.shape[1:3])
    for _ in range(repeats):
        down, right = random.integers(-1, 1, (2, len(x), len(rows), len(columns)))
        x[:, 2:, 2:] = x[images, rows[:, None] + down, columns + right]
    return smooth(x, sigma)


def defocus_blur(x: Array, level: tuple[float, float], random: Generator) -> Array:
    """Convolution with a disk of a radius that is smoothed by a 3×3 Gaussian of a sigma."""
    radius, sigma = level
    side = np.arange(-8, 9)
    disk = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    taps = np.exp(-(np.arange(-1, 2) ** 2) / (2 * sigma**2))
    taps /= taps.sum()
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(taps, taps), mode="mirror")
    return ndimage.convolve(x, kernel[None, :, :, None], mode="mirror")


def motion_blur(x: Array, level: tuple[int, float], random: Generator) -> Array:
    """Each image is smeared along a random line, within 45° of the horizontal."""
    return smear(x, *level, random.uniform(-45, 45, len(x)))


def zoom_blur(x: Array, most: float, random: Generator) -> Array:
    """The mean of the image and its enlargements by 1, 1.01, ... below `most`."""
    factors = np.arange(1, most, 0.01)
    return (x + sum(enlarge(x, factor) for factor in factors)) / (len(factors) + 1)


def smooth(x: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """A Gaussian filter over the two middle axes of (n, height, width, channels)."""
    return ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode=mode, truncate=truncate)


def smear(x: Array, radius: int, sigma: float, degrees: Array) -> Array:
    """A one-sided Gaussian of 2 · radius + 1 taps along a line, with one angle per image."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    along = np.deg2rad(degrees)[:, None]
    down, right = (np.ceil(steps * side - 0.5).astype(int) for side in (np.sin(along), np.cos(along)))
    images = np.arange(len(x))[:, None, None]
    rows, columns = (np.arange(size) for size in x.shape[1:3])
    smeared = np.zeros_like(x)
    for step, weight in enumerate(weights / weights.sum()):
        row = (rows + down[:, step, None]).clip(0, rows[-1])
        column = (columns + right[:, step, None]).clip(0, columns[-1])
        smeared += weight * x[images, row[:, :, None], column[:, None, :]]
    return smeared


def enlarge(x: Array, factor: float) -> Array:
    """The center of square images, enlarged by a factor to the same size with bilinear interpolation."""
    side = x.shape[1]
    kept = int(np.ceil(side / factor))
    large = round(kept * factor)
    places = (side - kept) // 2 + (np.arange(side) + (large - side) // 2) * (kept - 1) / (large - 1)
    weights = (1 - np.abs(places[:, None] - np.arange(side))).clip(min=0)
    rows = np.tensordot(weights, x, axes=(1, 1))  # (row, n, column, channel)
    return np.tensordot(weights, rows, axes=(1, 2)).transpose(2, 1, 0, 3)


def snow(x: Array, level: tuple[Any, ...], random: Generator) -> Array:
    """Flakes over a whitened image: Gaussian noise, enlarged, cut off below a threshold and smeared downward.

    The level has the mean and standard deviation of the noise, the enlargement, the threshold, the radius and sigma
    of the smear, and the part of the image that is not whitened.
    """
    mean, std, factor, threshold, radius, sigma, kept = level
    flakes = enlarge(random.normal(mean, std, (*x.shape[:3], 1)), factor)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = smear(np.floor(flakes * 255) / 255, radius, sigma, random.uniform(-135, -45, len(x)))
    gray = (x @ _LUMA)[..., None]
    whitened = kept * x + (1 - kept) * np.maximum(x, 1.5 * gray + 0.5)
    return whitened + flakes + flakes[:, ::-1, ::-1]


def fog(x: Array, level: tuple[float, float], random: Generator) -> Array:
    """A plasma fractal added with a weight; the sum is scaled back to the maximum of the image."""
    weight, decay = level
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    thick = x + weight * plasma(len(x), x.shape[1], decay, random)[..., None]
    return thick * brightest / (brightest + weight)


def brightness(x: Array, amount: float, random: Generator) -> Array:
    """The value V of hue, saturation and value raised by `amount`; hue and saturation stay."""
    value = x.max(axis=-1, keepdims=True)
    raised = (value + amount).clip(0, 1)
    return np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised)


def plasma(n: int, side: int, decay: float, random: Generator) -> Array:
    """Diamond-square fractals (n, side, side) on a torus, each scaled to 0..1; `side` is a power of two.

    The middle of a square, then of a diamond, is the mean of its four corners plus noise. The amplitude of the noise is
    divided by decay² each time the step is halved.
    """
    heights, step, amplitude = np.zeros((n, side, side)), side, 100.0**2

    def middle(corners: Array) -> Array:
        return corners / 4 + random.uniform(-amplitude, amplitude, corners.shape)

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=1)
        heights[:, half::step, half::step] = middle(pairs + np.roll(pairs, -1, axis=2))
        centers = heights[:, half::step, half::step]
        across = centers + np.roll(centers, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        heights[:, ::step, half::step] = middle(across)
        along = centers + np.roll(centers, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        heights[:, half::step, ::step] = middle(along)
        step, amplitude = half, amplitude / decay**2
    heights -= heights.min(axis=(1, 2), keepdims=True)
    return heights / heights.max(axis=(1, 2), keepdims=True)


def contrast(x: Array, factor: float, random: Generator) -> Array:
    """The difference from each channel's mean, scaled."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * factor + mean


def saturate(x: Array, level: tuple[float, float], random: Generator) -> Array:
    """The saturation S of hue, saturation and value becomes factor · S + offset; gray has the hue of red."""
    factor, offset = level
    value = x.max(axis=-1, keepdims=True)
    chroma = value - x.min(axis=-1, keepdims=True)
    saturation = chroma / np.where(value > 0, value, 1)
    below = np.where(chroma > 0, (value - x) / np.where(chroma > 0, chroma, 1), [0.0, 1.0, 1.0])
    return value - value * (factor * saturation + offset).clip(0, 1) * below


def elastic_transform(x: Array, level: tuple[float, float, float], random: Generator) -> Array:
    """A random affine map of three corners of a square, then a smooth random displacement of every pixel.

    The level has the size and the sigma of the displacement, and the largest move of a corner.
    """
    size, sigma, reach = level
    n, height, width, _ = x.shape
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    corners = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
    moved = corners + random.uniform(-reach, reach, (n, 3, 2))
    back = np.linalg.solve(np.concatenate([moved, np.ones((n, 3, 1))], axis=-1), np.broadcast_to(corners, moved.shape))
    places = grid @ back[:, None, :2] + back[:, None, 2:]
    x = sample(x, places, "mirror")
    shift = smooth(random.uniform(-1, 1, (n, height, width, 2)), sigma, mode="reflect", truncate=3.0) * size
    return sample(x, grid + shift, "reflect")


def pixelate(x: Array, factor: float, random: Generator) -> Array:
    """Shrink by a factor and enlarge again, both with a box filter."""

    def coarse(image: Image.Image) -> Image.Image:
        small = image.resize((int(image.width * factor), int(image.height * factor)), Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.BOX)

    return _each(x, coarse)


def jpeg_compression(x: Array, quality: int, random: Generator) -> Array:
    """Encode as JPEG with a quality and decode again."""

    def stored(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(x, stored)


def sample(x: Array, places: Array, mode: str) -> Array:
    """Bilinear values of (n, height, width, channels) at places (n, height, width, 2) given as column and row."""
    columns, rows = np.moveaxis(places[..., None], -2, 0)
    at = np.broadcast_arrays(np.arange(len(x))[:, None, None, None], rows, columns, np.arange(x.shape[-1]))
    return ndimage.map_coordinates(x, at, order=1, mode=mode)


def _each(x: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    images = np.rint(x * 255).astype(np.uint8)
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in images]) / 255


_SEVERITIES: dict[str, tuple[Callable[..., Array], tuple[Any, ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    ),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": (speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
CORRUPTIONS = tuple(_SEVERITIES)
