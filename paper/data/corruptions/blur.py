"""Blurs: Gaussian, glass, defocus, motion, zoom."""

import numpy as np
from numpy.random import Generator

from paper.data.dataset import Array


def gaussian_blur(x: Array, sigma: float, random: Generator) -> Array:
    """A Gaussian filter over height and width; the border is repeated.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        sigma: The standard deviation in pixels.
        random: Not used; all corruptions take it.
    """
    return smooth(x, sigma)


def glass_blur(x: Array, level: tuple[float, int], random: Generator) -> Array:
    """Each pixel takes the color of a near one, between two Gaussian blurs; the first two rows and columns stay.

    The published definition swaps pixels in place, but the code that made the released images copies them instead.

    Args:
        x: Images.
        level: The sigma of the blurs, and the number of moves.
        random: The source of the moves: each pixel stays or comes from above, from the left, or from both.
    """
    sigma, repeats = level
    x = np.floor(smooth(x, sigma) * 255) / 255
    images, (rows, columns) = np.arange(len(x))[:, None, None], (np.arange(2, size) for size in x.shape[1:3])
    for _ in range(repeats):
        down, right = random.integers(-1, 1, (2, len(x), len(rows), len(columns)))
        x[:, 2:, 2:] = x[images, rows[:, None] + down, columns + right]
    return smooth(x, sigma)


def defocus_blur(x: Array, level: tuple[float, float], random: Generator) -> Array:
    """Convolution with a disk that is smoothed by a 3×3 Gaussian.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        level: The pair (radius of the disk, sigma of the Gaussian).
        random: Not used; all corruptions take it.
    """
    from scipy import ndimage

    radius, sigma = level
    side = np.arange(-8, 9)
    disk = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    taps = np.exp(-(np.arange(-1, 2) ** 2) / (2 * sigma**2))
    taps /= taps.sum()
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(taps, taps), mode="mirror")
    return ndimage.convolve(x, kernel[None, :, :, None], mode="mirror")


def motion_blur(x: Array, level: tuple[int, float], random: Generator) -> Array:
    """Each image is smeared along a random line, within 45° of the horizontal.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        level: The pair (radius, sigma).
        random: The source of random numbers.
    """
    return smear(x, *level, random.uniform(-45, 45, len(x)))


def zoom_blur(x: Array, most: float, random: Generator) -> Array:
    """The mean of the image and its enlargements by 1, 1.01, ... below `most`.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        most: The bound of the enlargement.
        random: Not used; all corruptions take it.
    """
    factors = np.arange(1, most, 0.01)
    return (x + sum(enlarge(x, factor) for factor in factors)) / (len(factors) + 1)


def smooth(x: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """A Gaussian filter over the two middle axes of (n, height, width, channels).

    Args:
        x: Images, (n, height, width, channels).
        sigma: The standard deviation in pixels.
        mode: How the border is continued, as in `scipy.ndimage`.
        truncate: The number of standard deviations after which the filter ends.
    """
    from scipy import ndimage

    return ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode=mode, truncate=truncate)


def smear(x: Array, radius: int, sigma: float, degrees: Array) -> Array:
    """A one-sided Gaussian along a line, with one angle per image.

    Args:
        x: Images, (n, height, width, channels).
        radius: The filter has 2 · radius + 1 taps.
        sigma: The standard deviation in pixels.
        degrees: The angle of each image's line.
    """
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
    """The center of square images, enlarged by a factor to the same size with bilinear interpolation.

    Args:
        x: Square images, (n, height, width, channels).
        factor: The factor.
    """
    side = x.shape[1]
    kept, start = _center(side, factor)
    large = round(kept * factor)
    places = start + (np.arange(side) + (large - side) // 2) * (kept - 1) / (large - 1)
    weights = (1 - np.abs(places[:, None] - np.arange(side))).clip(min=0)
    rows = np.tensordot(weights, x, axes=(1, 1))  # (row, n, column, channel)
    return np.tensordot(weights, rows, axes=(1, 2)).transpose(2, 1, 0, 3)


def _center(side: int, factor: float) -> tuple[int, int]:
    """The number of pixels per side that an enlargement keeps, and the first of them."""
    kept = int(np.ceil(side / factor))
    return kept, (side - kept) // 2
