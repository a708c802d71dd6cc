"""Weather: snow, fog, brightness."""

import numpy as np
from numpy.random import Generator

from paper.data.corruptions.blur import enlarge, smear
from paper.data.dataset import Array

_LUMA = np.array([0.299, 0.587, 0.114])

SnowLevel = tuple[float, float, float, float, int, float, float]


def snow(x: Array, level: SnowLevel, random: Generator) -> Array:
    """Flakes over a whitened image: Gaussian noise, enlarged, cut off below a threshold and smeared downward.

    Args:
        x: Images.
        level: The mean and standard deviation of the noise, the enlargement, the threshold, the radius and sigma of
            the smear, and the part of the image that is not whitened.
        random: The source of the flakes.
    """
    mean, std, factor, threshold, radius, sigma, kept = level
    flakes = enlarge(random.normal(mean, std, (*x.shape[:3], 1)), factor)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = smear(np.floor(flakes * 255) / 255, radius, sigma, random.uniform(-135, -45, len(x)))
    gray = (x @ _LUMA)[..., None]
    whitened = kept * x + (1 - kept) * np.maximum(x, 1.5 * gray + 0.5)
    return whitened + flakes + flakes[:, ::-1, ::-1]


def fog(x: Array, level: tuple[float, float], random: Generator) -> Array:
    """A plasma fractal added with a weight; the sum is scaled back to the maximum of the image.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        level: The pair (weight, decay) of the fractal.
        random: The source of random numbers.
    """
    weight, decay = level
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    thick = x + weight * plasma(len(x), x.shape[1], decay, random)[..., None]
    return thick * brightest / (brightest + weight)


def brightness(x: Array, amount: float, random: Generator) -> Array:
    """The value V of hue, saturation and value raised by `amount`; hue and saturation stay.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        amount: What is added.
        random: Not used; all corruptions take it.
    """
    value = x.max(axis=-1, keepdims=True)
    raised = (value + amount).clip(0, 1)
    return np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised)


def plasma(n: int, side: int, decay: float, random: Generator) -> Array:
    """Diamond-square fractals (n, side, side) on a torus, each scaled to 0..1; `side` is a power of two.

    The middle of a square, then of a diamond, is the mean of its four corners plus noise. The amplitude of the noise is
    divided by decay² each time the step is halved.

    Args:
        n: The number of fractals.
        side: Their size, a power of two.
        decay: The factor by which the noise shrinks from one scale to the next.
        random: The source of random numbers.
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
