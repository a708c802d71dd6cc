"""The return type of every loader: inputs, targets, and their origin."""

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
class DataSplit:
    """One split of a dataset, in memory.

    Attributes:
        x: Images (n, channels, height, width) uint8, or the features of a table (n, d) float64.
        y: Labels (n,) int64, or the targets of a regression (n, 1) float64.
        name: The dataset's name.
        split: Which split it is.
        note: A phrase to print next to results; empty if this is exactly the published split.
        sha256: SHA-256 of `x` and `y`, independent of the files they were read from.
        grade: The grades 0..4 of the retina datasets, (n,) int64, that `y` is made from; None for other datasets.
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


@dataclass(frozen=True, eq=False)
class TextSplit:
    """One split of a dataset of texts, in memory.

    Attributes:
        texts: The texts.
        y: Labels (n,) int64.
        name: The dataset's name.
        split: Which split it is.
        note: A phrase to print next to results; empty if this is exactly the published split.
        sha256: SHA-256 of `texts` and `y`, independent of the files they were read from.
    """

    texts: tuple[str, ...]
    y: Tensor
    name: str
    split: Split
    note: str = ""
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.texts)


def build_texts(name: str, split: Split, arrays: Arrays, note: str = "") -> TextSplit:
    """A `TextSplit` of a reader's arrays: strings and labels.

    Args:
        name: The dataset's name.
        split: Which split it is.
        arrays: Texts and labels.
        note: A phrase to print next to results.
    """
    texts, labels = tuple(map(str, arrays[0])), arrays[1].astype(np.int64)
    lengths = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    content = np.frombuffer("".join(texts).encode(), dtype=np.uint8)
    digest = content_hash(content, lengths, labels)
    return TextSplit(texts, torch.from_numpy(labels), name, split, note, digest)


def build(name: str, split: Split, arrays: Arrays, note: str = "", graded: bool = False) -> DataSplit:
    """A `DataSplit` of a reader's arrays, with a check that there are as many inputs as targets.

    Args:
        name: The dataset's name.
        split: Which split it is.
        arrays: Inputs and targets.
        note: A phrase to print next to results.
        graded: Whether the targets are grades; the label is then "2 or worse".
    """
    x, y = arrays
    if len(x) == 0:
        raise FileFormatError(f"the files of {name} {split} have no examples: download them again.")
    if len(x) != len(y):
        raise FileFormatError(
            f"{name} {split} has {len(x)} inputs but {len(y)} labels: one of its files belongs to another split or "
            "dataset, so download both again."
        )
    regression = np.issubdtype(y.dtype, np.floating)
    x, y = np.require(x, requirements=["C", "W"]), y[:, None] if regression else y.astype(np.int64)
    targets = torch.from_numpy(np.require(y, requirements=["C", "W"]))
    grade = targets if graded else None
    labels = (targets >= 2).long() if graded else targets
    return DataSplit(torch.from_numpy(x), labels, name, split, note, content_hash(x, y), grade)


def content_hash(*arrays: Array) -> str:
    """SHA-256 of the types, shapes and values of `arrays`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
