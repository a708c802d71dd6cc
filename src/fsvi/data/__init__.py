"""Datasets: loaders, what there is and where, and the way from stored images to what a network sees."""

from fsvi.data.corruptions import CORRUPTIONS, corrupt
from fsvi.data.dataset import Dataset
from fsvi.data.store.catalogue import names
from fsvi.data.store.download import fetch
from fsvi.data.store.inventory import catalogue, verify
from fsvi.data.store.loading import available, ensure, load
from fsvi.data.toy import Standardize, Toy1D, oat1d, snelson, subspace, two_moons
from fsvi.data.transforms import Normalize, augment, rotate, splits

__all__ = [
    "CORRUPTIONS",
    "Dataset",
    "Normalize",
    "Standardize",
    "Toy1D",
    "augment",
    "available",
    "catalogue",
    "corrupt",
    "ensure",
    "fetch",
    "load",
    "names",
    "oat1d",
    "rotate",
    "snelson",
    "splits",
    "subspace",
    "two_moons",
    "verify",
]
