"""CIFAR-10-C: the released arrays where given, else CIFAR-10's test images corrupted again.

`cifar10-c/KIND/SEVERITY` names one corruption at one severity. `cifar10-c` alone is one set of 10,000 images at
severity 2, the second mildest, to which the kinds are applied in turn: image i has kind i modulo their number.
`frost` and `spatter` are read from the released arrays alone, and are not among those kinds.
"""

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fsvi.data.corruptions import CORRUPTIONS, corrupt
from fsvi.data.dataset import Array, Arrays
from fsvi.data.readers.archives import read_members
from fsvi.data.store.files import Entry, File, Source
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.validation import check_choice, first_line

NAME = "cifar10-c"
_NOTE = "regenerated from the published definitions"
_MIXED_SEVERITY = 2
_RELEASED_ONLY = ("frost", "spatter")
_TEST_IMAGES = 10_000
_RELEASED = File(
    f"{NAME}/CIFAR-10-C.tar",
    "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
    "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
)


def corrupted(name: str, clean: Entry) -> Entry:
    """The entry of `cifar10-c` or `cifar10-c/KIND/SEVERITY`, given CIFAR-10's own."""
    kinds, severity = _parse(name)
    arrays = tuple(File(f"{NAME}/{kind}.npy") for kind in (*kinds, "labels"))
    released = partial(_read_released, kinds=kinds, severity=severity)
    sources = [Source((file,), released) for file in (_RELEASED, File(f"{NAME}/CIFAR-10-C"))]
    sources += [Source(arrays, lambda paths: released([paths[0].parent]))]
    sources += [
        Source(source.files, partial(_regenerate, source=source, kinds=kinds, severity=severity), _NOTE)
        for source in clean.splits["test"]
        if not set(kinds) & set(_RELEASED_ONLY)
    ]
    applied = kinds[0].replace("_", " ") if len(kinds) == 1 else "corruptions in turn"
    return Entry(
        name=name,
        what=f"CIFAR-10 test images with {applied}, severity {severity}",
        licence="CC BY 4.0",
        page="https://zenodo.org/records/2535967",
        splits={"test": tuple(sources)},
    )


def _parse(name: str) -> tuple[tuple[str, ...], int]:
    if name == NAME:
        return CORRUPTIONS, _MIXED_SEVERITY
    kind, _, severity = name.removeprefix(f"{NAME}/").partition("/")
    if severity not in set("12345"):
        raise InvalidInputError(f"name={name!r} must end in a severity from 1 to 5, as in '{NAME}/fog/3'.")
    return (check_choice("the corruption", kind, (*CORRUPTIONS, *_RELEASED_ONLY)),), int(severity)


def _turns(kinds: Sequence[str], n: int) -> Iterator[tuple[str, slice]]:
    """Each kind with the images it is applied to."""
    return ((kind, slice(first, n, len(kinds))) for first, kind in enumerate(kinds))


def _regenerate(paths: Sequence[Path], source: Source, kinds: Sequence[str], severity: int) -> Arrays:
    x, y = source.read(paths)
    changed = np.empty_like(x)
    for kind, turn in _turns(kinds, len(x)):
        changed[turn] = corrupt(torch.from_numpy(x[turn].copy()), kind, severity).numpy()
    return changed, y


def _read_released(paths: Sequence[Path], kinds: Sequence[str], severity: int) -> Arrays:
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


def _read_npy(path: Path, kind: str) -> Array:
    content = read_members(path, [f"{kind}.npy"])[f"{kind}.npy"]
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # numpy raises many kinds for a damaged file
        raise FileFormatError(f"{kind}.npy in {path} is not an array: {first_line(error)}.") from error
