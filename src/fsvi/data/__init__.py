"""Toy data, and transforms of images and texts to network inputs."""

from fsvi.data.toy import Standardize, Toy1D, oat1d, snelson, subspace, two_moons
from fsvi.data.transforms import Normalize, augment, rotate, splits
from fsvi.data.words import Vocabulary

__all__ = [
    "Normalize",
    "Standardize",
    "Toy1D",
    "Vocabulary",
    "augment",
    "oat1d",
    "rotate",
    "snelson",
    "splits",
    "subspace",
    "two_moons",
]
