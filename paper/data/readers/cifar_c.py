"""CIFAR-10-C: read from the released arrays, or made again from CIFAR-10's test images.

Several kinds of corruption are applied in turn: image i gets kind i modulo their number.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from fsvi.errors import FileFormatError
from fsvi.validation import first_line
from paper.data.corruptions import corrupt
from paper.data.dataset import Array, Arrays
from paper.data.readers.archives import read_members

_TEST_IMAGES = 10_000


def read_released(paths: Sequence[Path], kinds: Sequence[str], severity: int) -> Arrays:
    """Images and labels from the released archive or its unpacked folder.

    Args:
        paths: The archive or folder, which has one array per kind and `labels`, with the severities one after another.
        kinds: The corruptions to take in turn.
        severity: 1 to 5.
    """
    block = slice((severity - 1) * _TEST_IMAGES, severity * _TEST_IMAGES)
    labels = _read_npy(paths[0], "labels")[block]
    images = np.empty((_TEST_IMAGES, 32, 32, 3), np.uint8)
    try:
        for kind, turn in _turns(kinds, _TEST_IMAGES):
            images[turn] = _read_npy(paths[0], kind)[block][turn]
    except ValueError as error:
        raise FileFormatError(
            f"{kind}.npy in {paths[0]} is not 50,000 images of 32×32: {first_line(error)}."
        ) from error
    return images.transpose(0, 3, 1, 2), labels


def regenerate(
    paths: Sequence[Path], read: Callable[[Sequence[Path]], Arrays], kinds: Sequence[str], severity: int
) -> Arrays:
    """Images and labels made from clean test images.

    Args:
        paths: The files of the clean images.
        read: Their reader.
        kinds: The corruptions to apply in turn.
        severity: 1 to 5.
    """
    x, y = read(paths)
    changed = np.empty_like(x)
    for kind, turn in _turns(kinds, len(x)):
        changed[turn] = corrupt(torch.from_numpy(x[turn].copy()), kind, severity).numpy()
    return changed, y


def _turns(kinds: Sequence[str], n: int) -> Iterator[tuple[str, slice]]:
    """Each kind with the images that it is applied to."""
    return ((kind, slice(first, n, len(kinds))) for first, kind in enumerate(kinds))


def _read_npy(path: Path, kind: str) -> Array:
    content = read_members(path, [f"{kind}.npy"])[f"{kind}.npy"]
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy raises many kinds of errors for a damaged file
        raise FileFormatError(f"{kind}.npy in {path} is not an array: {first_line(error)}.") from error
