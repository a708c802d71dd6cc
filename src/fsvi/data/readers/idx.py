"""The idx files of MNIST and its relatives: a magic number, the sizes, then the bytes."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fsvi.data.dataset import Array, Arrays
from fsvi.errors import FileFormatError
from fsvi.validation import first_line

_UNSIGNED_BYTE = 8


def read_content(path: Path) -> bytes:
    """A file's bytes, unpacked if it is gzip, whatever its name ends in."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(
            f"{path} cannot be read ({first_line(error)}): it is damaged or cut short, so delete it and get it again."
        ) from error


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
            f"{path} announces {math.prod(shape)} values but holds {len(content) - start}: delete it and get it again."
        )
    return np.frombuffer(bytearray(content), np.uint8, offset=start).reshape(shape)


def read_images(paths: Sequence[Path]) -> Arrays:
    """Grey images (n, 1, height, width) and labels (n,) from their two idx files."""
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or labels.ndim != 1:
        raise FileFormatError(
            f"{paths[0]} and {paths[1].name} have {images.ndim} and {labels.ndim} dimensions, not the 3 of images "
            "and the 1 of labels."
        )
    return images[:, None], labels
