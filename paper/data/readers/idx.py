"""The idx files of MNIST and similar datasets: a magic number, the sizes, then the bytes."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fsvi.errors import FileFormatError
from paper.data.dataset import Array, Arrays
from paper.data.readers.archives import read_content

_UNSIGNED_BYTE = 8


def read_idx(path: Path) -> Array:
    """The array of unsigned bytes in one idx file, gzip or plain."""
    content = read_content(path)
    dimensions = content[3] if len(content) >= 4 and content[:3] == bytes([0, 0, _UNSIGNED_BYTE]) else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(content) < start:
        raise FileFormatError(f"{path} is not an idx file of bytes: its header is {content[:4].hex() or 'empty'}.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise FileFormatError(
            f"{path} announces {math.prod(shape)} values but has {len(content) - start}: download it again."
        )
    return np.frombuffer(bytearray(content), np.uint8, offset=start).reshape(shape)


def read_images(paths: Sequence[Path]) -> Arrays:
    """Gray images (n, 1, height, width) and labels (n,) from two idx files."""
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or labels.ndim != 1:
        raise FileFormatError(
            f"{paths[0]} and {paths[1].name} have {images.ndim} and {labels.ndim} dimensions, not the 3 of images "
            "and the 1 of labels."
        )
    return images[:, None], labels
