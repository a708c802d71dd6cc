"""CIFAR-10 and CIFAR-100 from the official Python archives, and CIFAR-10 from PNG sheets with one image per row."""

import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fsvi.errors import FileFormatError
from fsvi.validation import first_line
from paper.data.dataset import Array, Arrays
from paper.data.readers.archives import read_members

CIFAR10_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_SIDE = 32
# NumPy moved its core between versions; both names mean the function of the installed version.
_ADMITTED = {
    (f"numpy.{core}multiarray", "_reconstruct"): np.empty(0).__reduce__()[0] for core in ("core.", "_core.")
} | {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds arrays and plain containers only."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not an array") from None


def read_batches(paths: Sequence[Path], batches: Sequence[str], labels: bytes) -> Arrays:
    """Images and labels from the named batches of an official archive, packed or unpacked.

    Args:
        paths: The files of the source.
        batches: The names of the batches.
        labels: The key of the labels.
    """
    members = read_members(paths[0], batches)
    tables = [_unpickle(paths[0], name, members[name]) for name in batches]
    try:
        images = np.concatenate([table[b"data"] for table in tables])
        return images.reshape(-1, 3, _SIDE, _SIDE), np.concatenate([table[labels] for table in tables])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{paths[0]} has no CIFAR batches ({first_line(error)}).") from error


def read_sheets(paths: Sequence[Path], batches: Sequence[str]) -> Arrays:
    """Images and labels from PNG sheets (one 32×32 image per row) and their label file, in an archive or a folder.

    Args:
        paths: The files of the source.
        batches: The names of the sheets.
    """
    sheets = [f"{name}.png" for name in batches]
    label_file = (
        f"{'test' if batches == CIFAR10_BATCHES['test'] else 'train'}_lables.json"  # spelled like this in the package
    )
    members = read_members(paths[0], [*sheets, label_file])
    images = np.concatenate([_read_sheet(paths[0], name, members[name]) for name in sheets])
    try:
        return images, np.array(json.loads(members[label_file]), dtype=np.int64)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{label_file} in {paths[0]} is not a list of labels: {first_line(error)}.") from error


def _unpickle(path: Path, name: str, content: bytes) -> dict[bytes, Any]:
    try:
        table = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a malicious pickle can raise anything
        raise FileFormatError(f"{name} in {path} is not a CIFAR batch: {first_line(error)}.") from error
    if not isinstance(table, dict):
        raise FileFormatError(f"{name} in {path} is not a CIFAR batch: it has a {type(table).__name__}.")
    return table


def _read_sheet(path: Path, name: str, content: bytes) -> Array:
    from PIL import Image

    try:
        sheet = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        return sheet.reshape(-1, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{name} in {path} is not a sheet of 32×32 images: {first_line(error)}.") from error
