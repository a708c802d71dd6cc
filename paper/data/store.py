"""Datasets on this machine: find, download, check and load them.

The folders in $FSVI_DATA are searched first, then the cache. Missing files are downloaded into the cache. A file with
another hash than the published one is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pooch
import torch
from filelock import FileLock
from torch import Tensor

from fsvi.errors import DataNotFoundError, FileFormatError, InvalidInputError
from fsvi.validation import first_line
from paper.data.catalog import Entry, File, Source, Split, entry_of

Verdict = Literal["ok", "differs", "unverified", "wrong", "missing"]


@dataclass(frozen=True, eq=False)
class DataSplit:
    """One split of a dataset, in memory; `note` is a phrase to print next to results, if it is not the published split.

    Attributes:
        x: Images (n, channels, height, width) uint8, the features of a table (n, d) float64, or a tuple of texts.
        y: Labels (n,) int64, or the targets of a regression (n, 1) float64.
        sha256: SHA-256 of `x` and `y`, independent of the files they were read from.
    """

    x: Any
    y: Tensor
    name: str
    split: Split
    note: str = ""
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.x)


def load(name: str, split: Split = "train") -> DataSplit:
    """One split of a dataset: "train", "test", or "validation" if the publisher made one.

    Tables have only "train" with all rows. `Normalize` makes network inputs from images, and `Vocabulary` from texts.
    """
    source, paths, note = ensure(name, split)
    x, y = source.read(paths)
    if len(x) == 0 or len(x) != len(y):
        raise FileFormatError(
            f"{name} {split} has {len(x)} inputs and {len(y)} labels: one of its files belongs to another split "
            "or dataset, so download both again."
        )
    y = np.require(y[:, None] if np.issubdtype(y.dtype, np.floating) else y.astype(np.int64), requirements=["C", "W"])
    if x.dtype == object:
        lengths = np.array([len(text.encode()) for text in x], dtype=np.int64)
        content = np.frombuffer("".join(x).encode(), dtype=np.uint8)
        return DataSplit(tuple(x), torch.from_numpy(y), name, split, note, content_hash(content, lengths, y))
    x = np.require(x, requirements=["C", "W"])
    return DataSplit(torch.from_numpy(x), torch.from_numpy(y), name, split, note, content_hash(x, y))


def ensure(name: str, split: Split = "train") -> tuple[Source, list[Path], str]:
    """The source and files of a split and the phrase to print next to results, after a download if it is missing."""
    entry = entry_of(name)
    if split not in entry.splits:
        has = " and ".join(map(repr, entry.splits))
        raise InvalidInputError(f"{name} has no split {split!r}, only {has}: hold out a part with splits().")
    source, paths = find(entry, split) or _download(entry, split)
    verdicts = [check_file(path, file) for path, file in zip(paths, source.files, strict=True)]
    if "wrong" in verdicts:
        path = paths[verdicts.index("wrong")]
        raise FileFormatError(f"{path} is not the published file (its hash differs): replace it, or delete it.")
    differs = "not the published file: its hash differs" if "differs" in verdicts else ""
    return source, paths, "; ".join(filter(None, (source.note, differs)))


def available(name: str, split: Split = "train") -> bool:
    """Whether a split can be loaded without a download."""
    entry = entry_of(name)
    return split in entry.splits and find(entry, split) is not None


def content_hash(*arrays: np.typing.NDArray[Any]) -> str:
    """SHA-256 of the types, shapes and values of `arrays`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def cache() -> Path:
    """The folder for downloads: $XDG_CACHE_HOME/fsvi, or the system's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home) / "fsvi" if home else Path(pooch.os_cache("fsvi"))


def folders() -> list[Path]:
    """The folders that FSVI_DATA names."""
    return [Path(part).expanduser() for part in os.environ.get("FSVI_DATA", "").split(os.pathsep) if part]


def find_file(name: str) -> Path:
    """A file that is in no catalog, by its path inside a folder that FSVI_DATA names."""
    found = next((folder / name for folder in folders() if (folder / name).is_file()), None)
    if found is None:
        raise DataNotFoundError(f"{name} is in no folder that FSVI_DATA names.")
    return found


def find(entry: Entry, split: Split) -> tuple[Source, list[Path]] | None:
    """The first source of a split with all files in one folder, and their paths; .gz files may be unpacked."""
    for source, folder in product(entry.splits[split], [*folders(), cache()]):
        paths = [folder / file.name for file in source.files]
        paths = [path if path.exists() or path.suffix != ".gz" else path.with_suffix("") for path in paths]
        if all(path.exists() for path in paths):
            return source, paths
    return None


def _download(entry: Entry, split: Split) -> tuple[Source, list[Path]]:
    sources = entry.splits[split]
    source = next((source for source in sources if all(file.url for file in source.files)), None)
    if source is None:
        choices = " or ".join(" and ".join(map(_describe, source.files)) for source in sources)
        raise DataNotFoundError(
            f"{entry.name} {split} is missing and cannot be downloaded automatically: get it from {entry.page} and put "
            f"{choices} into {cache()} or a folder that FSVI_DATA names."
        )
    return source, [_retrieve(file) for file in source.files]


def _describe(file: File) -> str:
    name = file.name.removesuffix(".gz")  # users need not compress their own files
    return f"{name} ({file.holds})" if file.holds else name


def _retrieve(file: File) -> Path:
    """Download a file; pooch moves it to its place when it is complete."""
    path = cache() / file.name
    pooch.get_logger().setLevel("WARNING")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.exists():  # otherwise another process was faster
                print(f"{file.name}: downloading {file.url}", file=sys.stderr)
                pooch.retrieve(file.url, known_hash=None, fname=path.name, path=path.parent)
    except Exception as error:  # of the network, of pooch, of the disk
        raise DataNotFoundError(
            f"{path.name} could not be downloaded ({first_line(error)}): try again when online, or get {file.url} "
            f"elsewhere and put it at {path} or at {file.name} in a folder that FSVI_DATA names."
        ) from error
    if check_file(path, file) != "ok":
        path.unlink()
        raise FileFormatError(
            f"{file.url} did not deliver the published {path.name} (its hash differs), so it was deleted: try again, "
            f"or put the right file at {path}."
        )
    return path


def check_file(path: Path, file: File) -> Verdict:
    """Compare a file with its known hash.

    It "differs" if users make the file themselves and its content is not the known one, and is "unverified" if no hash
    is known or none applies.
    """
    algorithm = (file.digest or "").partition(":")[0]
    if not algorithm or (algorithm == "md5" and path.name != Path(file.name).name):  # MD5 is that of the packed file
        return "unverified"
    if _digest(path, algorithm, path.stat().st_mtime_ns) == file.digest:
        return "ok"
    return "differs" if file.holds else "wrong"


@lru_cache
def _digest(path: Path, algorithm: str, modified: int) -> str:
    """MD5 of a file, or SHA-256 of its content, unpacked if it is gzip; remembered until the file is modified."""
    digest = hashlib.new(algorithm)
    try:
        with path.open("rb") as file:
            is_packed = algorithm == "sha256" and file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return "damaged"
    return f"{algorithm}:{digest.hexdigest()}"


def verify(name: str) -> list[tuple[Verdict, str]]:
    """The verdict on each file of a dataset, or on a split that is missing; nothing is downloaded."""
    checks: dict[tuple[Verdict, str], None] = {}
    for split in entry_of(name).splits:
        if found := find(entry_of(name), split):
            pairs = zip(found[1], found[0].files, strict=True)
            checks |= dict.fromkeys((check_file(path, file), str(path)) for path, file in pairs)
        else:
            checks["missing", f"{name} {split}"] = None
    return list(checks)
