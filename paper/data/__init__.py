"""The datasets of the paper: load them by name, list and check local files, corrupt and transform images."""

from paper.data.catalog import names
from paper.data.corruptions import CORRUPTIONS, corrupt
from paper.data.store import DataSplit, available, ensure, load, verify
from paper.data.toys import Standardize
from paper.data.transforms import Normalize, augment, cropped, rotate, splits

__all__ = [
    "CORRUPTIONS",
    "DataSplit",
    "Normalize",
    "Standardize",
    "augment",
    "available",
    "corrupt",
    "cropped",
    "ensure",
    "load",
    "names",
    "rotate",
    "splits",
    "verify",
]
