"""Datasets: load them by name, list and check local files, and transform images to network inputs."""

from fsvi.data.corruptions import CORRUPTIONS, corrupt
from fsvi.data.dataset import DataSplit, TextSplit
from fsvi.data.store.catalog import names
from fsvi.data.store.download import fetch
from fsvi.data.store.inventory import catalog, verify
from fsvi.data.store.loading import available, ensure, load, load_texts
from fsvi.data.toy import Standardize, Toy1D, oat1d, snelson, subspace, two_moons
from fsvi.data.transforms import Normalize, augment, rotate, splits
from fsvi.data.words import Vocabulary

__all__ = [
    "CORRUPTIONS",
    "DataSplit",
    "Normalize",
    "Standardize",
    "TextSplit",
    "Toy1D",
    "Vocabulary",
    "augment",
    "available",
    "catalog",
    "corrupt",
    "ensure",
    "fetch",
    "load",
    "load_texts",
    "names",
    "oat1d",
    "rotate",
    "snelson",
    "splits",
    "subspace",
    "two_moons",
    "verify",
]
