"""Datasets published as pictures or array files: notMNIST's PNGs, SVHN's .mat and .npz."""

import io
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from fsvi.errors import FileFormatError
from fsvi.validation import first_line
from paper.data.dataset import Array, Arrays
from paper.data.readers.archives import walk

_LETTERS = tuple("ABCDEFGHIJ")
_SIDE = 28


def read_letters(paths: Sequence[Path]) -> Arrays:
    """notMNIST's gray 28×28 pictures from the folders A to J of its archive, without the unreadable ones.

    They are in a fixed random order, so that the first pictures include all letters.
    """
    members = sorted(walk(paths[0], lambda name: name.endswith(".png") and _letter(name) in _LETTERS))
    readable = [(name, image) for name, content in members if (image := _gray(content)) is not None]
    if not readable:
        raise FileFormatError(f"{paths[0]} has no picture in a folder A to J, so it is not notMNIST.")
    for name, image in readable:
        if image.shape != (_SIDE, _SIDE):
            height, width = image.shape
            raise FileFormatError(f"{name} in {paths[0]} has {width}×{height} pixels, so it is not notMNIST's.")
    images, labels = [image for _, image in readable], [_LETTERS.index(_letter(name)) for name, _ in readable]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).numpy()
    return np.stack(images)[order, None], np.array(labels)[order]


def read_mat(paths: Sequence[Path]) -> Arrays:
    """SVHN's official cropped digits: images stored (32, 32, 3, n), the digit 0 labeled 10."""
    from scipy.io import loadmat

    try:
        content = loadmat(paths[0])
        return content["X"].transpose(3, 2, 0, 1), content["y"].ravel() % 10
    except Exception as error:  # scipy raises many kinds of errors for a damaged file
        raise FileFormatError(f"{paths[0]} is not a .mat file of SVHN digits: {first_line(error)}.") from error


def read_npz(paths: Sequence[Path]) -> Arrays:
    """Images (n, height, width, channels) `x` and labels `y` of an .npz file."""
    try:
        # NumPy does not close a file that it opened itself when the file turns out to be damaged.
        with paths[0].open("rb") as file, np.load(file, allow_pickle=False) as content:
            return content["x"].transpose(0, 3, 1, 2), content["y"]
    except Exception as error:  # numpy and zipfile raise many kinds of errors for a damaged file
        raise FileFormatError(
            f"{paths[0]} is not an .npz file of images x and labels y: {first_line(error)}."
        ) from error


def _letter(name: str) -> str:
    return PurePosixPath(name).parent.name


def _gray(content: bytes) -> Array | None:
    from PIL import Image

    try:
        return np.asarray(Image.open(io.BytesIO(content)).convert("L"))
    except OSError:
        return None
