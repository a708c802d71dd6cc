"""Noise on pixels: Gaussian, shot, impulse, speckle."""

from numpy.random import Generator

from paper.data.dataset import Array


def gaussian_noise(x: Array, scale: float, random: Generator) -> Array:
    """x + ε with ε ~ N(0, scale²).

    Args:
        x: Images in 0..1, (n, height, width, channels).
        scale: The standard deviation.
        random: The source of random numbers.
    """
    return x + random.normal(scale=scale, size=x.shape)


def shot_noise(x: Array, photons: float, random: Generator) -> Array:
    """Poisson(x · photons) / photons.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        photons: The number of photons of a white pixel.
        random: The source of random numbers.
    """
    return random.poisson(x * photons) / photons


def impulse_noise(x: Array, amount: float, random: Generator) -> Array:
    """A fraction `amount` of all values becomes 0 or 1, each with probability one half.

    Args:
        x: Images in 0..1, (n, height, width, channels).
        amount: The fraction of values that change.
        random: The source of random numbers.
    """
    hit, salt = random.random(x.shape) < amount, random.random(x.shape) < 0.5
    noisy = x.copy()
    noisy[hit] = salt[hit]
    return noisy


def speckle_noise(x: Array, scale: float, random: Generator) -> Array:
    """x + x ε with ε ~ N(0, scale²).

    Args:
        x: Images in 0..1, (n, height, width, channels).
        scale: The standard deviation.
        random: The source of random numbers.
    """
    return x + x * random.normal(scale=scale, size=x.shape)
