"""What every loader returns: inputs, targets, and where they come from."""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsvi.errors import FileFormatError

Split = Literal["train", "validation", "test"]
Array = npt.NDArray[Any]
Arrays = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a dataset, in memory.

    Attributes:
        x: Images (n, channels, height, width) uint8, or the features of a table (n, d) float64.
        y: Labels (n,) int64, or the targets of a regression (n, 1) float64.
        name: The dataset's name.
        split: Which split it is.
        note: A phrase to print beside figures made from it; empty when it is the published split and nothing else.
        sha256: SHA-256 of `x` and `y`, whatever files they were read from.
        grade: The retina sets' grades 0..4, (n,) int64, from which `y` is made; None elsewhere.
    """

    x: Tensor
    y: Tensor
    name: str
    split: Split
    note: str = ""
    sha256: str = ""
    grade: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)


def build(name: str, split: Split, arrays: Arrays, note: str = "", graded: bool = False) -> Dataset:
    """A `Dataset` of what a reader returned, once inputs and targets are known to be as many.

    Args:
        name: The dataset's name.
        split: Which split it is.
        arrays: Inputs and targets.
        note: A phrase to print beside figures.
        graded: Whether the targets are grades, from which the label "2 or worse" is made.
    """
    x, y = arrays
    if len(x) == 0:
        raise FileFormatError(f"the files of {name} {split} hold no examples: get them again.")
    if len(x) != len(y):
        raise FileFormatError(
            f"{name} {split} has {len(x)} inputs but {len(y)} labels: one of its files belongs to another split or "
            "dataset, so get both again."
        )
    regression = np.issubdtype(y.dtype, np.floating)
    x, y = np.require(x, requirements=["C", "W"]), y[:, None] if regression else y.astype(np.int64)
    targets = torch.from_numpy(np.require(y, requirements=["C", "W"]))
    grade = targets if graded else None
    labels = (targets >= 2).long() if graded else targets
    return Dataset(torch.from_numpy(x), labels, name, split, note, content_hash(x, y), grade)


def content_hash(*arrays: Array) -> str:
    """SHA-256 of the types, shapes and values of `arrays`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
