"""The datasets of the paper: load them by name, list and check local files, corrupt and transform images."""

from fsvi.data import Standardize, Vocabulary
from paper.data.catalog import names
from paper.data.corruptions import CORRUPTIONS, corrupt
from paper.data.store import DataSplit, TextSplit, available, catalog, ensure, fetch, load, load_texts, verify
from paper.data.transforms import Normalize, augment, rotate, splits

__all__ = [
    "CORRUPTIONS",
    "DataSplit",
    "Normalize",
    "Standardize",
    "TextSplit",
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
    "rotate",
    "splits",
    "verify",
]
