"""Noise on pixels: Gaussian, shot, impulse, speckle."""

from numpy.random import Generator

from fsvi.data.dataset import Array


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
