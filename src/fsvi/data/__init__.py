"""Datasets."""

from fsvi.data.dataset import Dataset
from fsvi.data.loading import available, load, names
from fsvi.data.toy import Standardize, Toy1D, oat1d, snelson, subspace, two_moons
from fsvi.data.transforms import Normalize, augment, rotate, splits

__all__ = [
    "Dataset",
    "Normalize",
    "Standardize",
    "Toy1D",
    "augment",
    "available",
    "load",
    "names",
    "oat1d",
    "rotate",
    "snelson",
    "splits",
    "subspace",
    "two_moons",
]
