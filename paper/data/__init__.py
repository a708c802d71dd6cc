"""The datasets of the paper: load them by name, list and check local files, corrupt and transform images."""

from fsvi.data import Normalize, Standardize, Toy1D, Vocabulary, augment, oat1d, rotate, snelson, splits, subspace
from fsvi.data import two_moons as two_moons
from paper.data.corruptions import CORRUPTIONS, corrupt
from paper.data.dataset import DataSplit, TextSplit
from paper.data.store.catalog import names
from paper.data.store.download import fetch
from paper.data.store.inventory import catalog, verify
from paper.data.store.loading import available, ensure, load, load_texts

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
