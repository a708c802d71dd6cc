"""Datasets on this machine: find, download, check and load them.

The folder `root` is searched first, then the folders in $FSVI_DATA, then the cache. Missing files are downloaded into
the cache. A file with another hash than the published one is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pooch
import torch
from filelock import FileLock
from torch import Tensor

from fsvi.errors import DataNotFoundError, FileFormatError, InvalidInputError
from fsvi.validation import first_line
from paper.data.catalog import ENTRIES, Entry, File, Source, Split, entry_of

Verdict = Literal["ok", "differs", "unverified", "wrong", "missing"]
_CHUNK = 1 << 20


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
    """One split of a dataset of texts, in memory; the attributes are as those of `DataSplit`."""

    texts: tuple[str, ...]
    y: Tensor
    name: str
    split: Split
    note: str = ""
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.texts)


# Loading ------------------------------------------------------------------------------------------------------------


def load(name: str, split: Split = "train", root: Path | str | None = None) -> DataSplit:
    """Load one split of a dataset into memory; `names` lists the datasets.

    Args:
        name: The dataset's name; `cifar10-c/KIND/SEVERITY` is one corruption of CIFAR-10-C.
        split: "train" or "test", or "validation" if the publisher made one. Tables have only "train" with all rows.
        root: A folder that has one folder per dataset.

    Returns:
        The split as stored: images uint8, tables float64. Use `Normalize` to make network inputs from images.
    """
    entry = entry_of(name)
    if entry.is_text:
        raise InvalidInputError(f"{name} has texts, not numbers: load it with load_texts({name!r}).")
    x, y, note = _read(entry, split, root)
    y = y[:, None] if np.issubdtype(y.dtype, np.floating) else y.astype(np.int64)
    x, y = (np.require(each, requirements=["C", "W"]) for each in (x, y))
    targets, digest = torch.from_numpy(y), content_hash(x, y)
    if entry.graded:
        return DataSplit(torch.from_numpy(x), (targets >= 2).long(), name, split, note, digest, targets)
    return DataSplit(torch.from_numpy(x), targets, name, split, note, digest)


def load_texts(name: str, split: Split = "train", root: Path | str | None = None) -> TextSplit:
    """Load one split of a dataset of texts into memory; `Vocabulary` turns the texts into numbers.

    Args:
        name: The dataset's name, such as "imdb".
        split: "train", "validation" or "test".
        root: A folder that has one folder per dataset.
    """
    entry = entry_of(name)
    if not entry.is_text:
        raise InvalidInputError(f"{name} has no texts: load it with load({name!r}).")
    x, y, note = _read(entry, split, root)
    texts, y = tuple(map(str, x)), y.astype(np.int64)
    lengths = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    content = np.frombuffer("".join(texts).encode(), dtype=np.uint8)
    return TextSplit(texts, torch.from_numpy(y), name, split, note, content_hash(content, lengths, y))


def ensure(name: str, split: Split = "train") -> None:
    """Download a split if it is missing and check its hashes, without reading it."""
    _located(entry_of(name), split)


def available(name: str, split: Split = "train", root: Path | str | None = None) -> bool:
    """Whether a split can be loaded without a download."""
    entry = entry_of(name)
    return split in entry.splits and find(entry, split, root) is not None


def content_hash(*arrays: np.typing.NDArray[Any]) -> str:
    """SHA-256 of the types, shapes and values of `arrays`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _read(entry: Entry, split: Split, root: Path | str | None) -> tuple[Any, Any, str]:
    source, paths, note = _located(entry, split, root)
    x, y = source.read(paths)
    if len(x) == 0 or len(x) != len(y):
        raise FileFormatError(
            f"{entry.name} {split} has {len(x)} inputs and {len(y)} labels: one of its files belongs to another split "
            "or dataset, so download both again."
        )
    return x, y, note


def _located(entry: Entry, split: Split, root: Path | str | None = None) -> tuple[Source, list[Path], str]:
    """The source of a split, its files and the phrase to print next to results."""
    if split not in entry.splits:
        has = " and ".join(map(repr, entry.splits))
        raise InvalidInputError(f"{entry.name} has no split {split!r}, only {has}: hold out a part with splits().")
    source, paths = find(entry, split, root) or _download(entry, split)
    verdicts = [check_file(path, file) for path, file in zip(paths, source.files, strict=True)]
    if "wrong" in verdicts:
        path = paths[verdicts.index("wrong")]
        raise FileFormatError(f"{path} is not the published file (its hash differs): replace it, or delete it.")
    differs = "not the published file: its hash differs" if "differs" in verdicts else ""
    return source, paths, "; ".join(filter(None, (source.note, differs)))


# Finding ------------------------------------------------------------------------------------------------------------


def cache() -> Path:
    """The folder for downloads: $XDG_CACHE_HOME/fsvi, or the system's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home) / "fsvi" if home else Path(pooch.os_cache("fsvi"))


def find(entry: Entry, split: Split, root: Path | str | None = None) -> tuple[Source, list[Path]] | None:
    """The first source of a split with all files in one folder, and their paths; any source in `root` comes first."""
    named = [Path(part).expanduser() for part in os.environ.get("FSVI_DATA", "").split(os.pathsep) if part]
    for folders in ([] if root is None else [Path(root)], [*named, cache()]):
        for source in entry.splits[split]:
            for folder in folders:
                paths = [_locate(folder, file) for file in source.files]
                if all(paths):
                    return source, [path for path in paths if path]
    return None


def _locate(folder: Path, file: File) -> Path | None:
    """The file in `folder`, under its name or without .gz."""
    candidates = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)


# Downloading --------------------------------------------------------------------------------------------------------


def fetch(name: str) -> None:
    """Download what is missing of a dataset into the cache, and check everything that is here."""
    for split in entry_of(name).splits:
        _, paths, _ = _located(entry_of(name), split)
        print(f"{name} {split}: {', '.join(map(str, paths))}")


def _download(entry: Entry, split: Split) -> tuple[Source, list[Path]]:
    source = next((source for source in entry.splits[split] if source.downloadable), None)
    if source is None:
        choices = " or ".join(" and ".join(map(_describe, source.files)) for source in entry.splits[split])
        raise DataNotFoundError(
            f"{entry.name} {split} is missing and cannot be downloaded automatically: get it from {entry.page} and put "
            f"{choices} into {cache()} or a folder that FSVI_DATA names."
        )
    return source, [_retrieve(file) for file in source.files]


def _describe(file: File) -> str:
    name = file.name.removesuffix(".gz")  # users need not compress their own files
    return f"{name} ({file.holds})" if file.holds else name


def _retrieve(file: File) -> Path:
    """Download a file; it appears under its name when it is complete and has passed the check."""
    path = cache() / file.name
    part = path.with_name(f"{path.name}.part")
    pooch.get_logger().setLevel("WARNING")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.exists():  # another process was faster
                return path
            print(f"{file.name}: downloading {file.url}", file=sys.stderr)
            part.unlink(missing_ok=True)
            pooch.retrieve(file.url, known_hash=None, fname=part.name, path=part.parent)
            if check_file(part, file) != "ok":
                part.unlink()
                raise FileFormatError(
                    f"{file.url} did not deliver the published {path.name} (its hash differs), so it was deleted: try "
                    f"again, or put the right file at {path}."
                )
            os.replace(part, path)
    except FileFormatError:
        raise
    except Exception as error:  # of the network, of pooch, of the disk
        raise DataNotFoundError(
            f"{path.name} could not be downloaded ({first_line(error)}): try again when online, or get {file.url} "
            f"elsewhere and put it at {path} or at {file.name} in a folder that FSVI_DATA names."
        ) from error
    return path


# Checking -----------------------------------------------------------------------------------------------------------


def check_file(path: Path, file: File) -> Verdict:
    """Compare a file with its known hash, remembered while its size and modification time stay the same.

    Returns:
        "ok" or "wrong"; "differs" if users make the file themselves and its content is not the known one; "unverified"
        if no hash is known or none applies.
    """
    stat = path.stat()
    return "unverified" if path.is_dir() else _verdict(path, file, stat.st_size, stat.st_mtime_ns)


@lru_cache
def _verdict(path: Path, file: File, size: int, modified: int) -> Verdict:
    if file.digest is None:
        return "unverified"
    algorithm, _, expected = file.digest.partition(":")
    if algorithm == "md5":  # of the file as published; it does not apply to an unpacked copy
        is_unpacked = file.name.endswith(".gz") and not path.name.endswith((".gz", ".part"))
        return "ok" if pooch.file_hash(str(path), "md5") == expected else "unverified" if is_unpacked else "wrong"
    if _content_digest(path) == expected:
        return "ok"
    return "differs" if file.holds else "wrong"


def _content_digest(path: Path) -> str | None:
    """SHA-256 of a file's content, unpacked if it is gzip; None if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return None
    return digest.hexdigest()


def verify(name: str) -> list[tuple[Verdict, str, Path | None]]:
    """The verdict on each file of a dataset, its name, and where it was found; nothing is downloaded."""
    entry, checks = entry_of(name), dict[tuple[Verdict, str, Path | None], None]()
    for split, sources in entry.splits.items():
        found = find(entry, split)
        if found is None:
            wanted = next((source for source in sources if source.downloadable), sources[0])
            checks |= dict.fromkeys(("missing", file.name, None) for file in wanted.files)
        else:
            pairs = zip(found[0].files, found[1], strict=True)
            checks |= dict.fromkeys((check_file(path, file), file.name, path) for file, path in pairs)
    return list(checks)


def catalog() -> list[dict[str, str]]:
    """Every dataset with its license and where it is; nothing is downloaded."""
    return [
        {"name": entry.name, "description": entry.description, "license": entry.license, "where": _where(entry)}
        for entry in ENTRIES.values()
    ]


def _where(entry: Entry) -> str:
    found = {split: hit for split in entry.splits if (hit := find(entry, split))}
    folders = {str(path.parent) for _, paths in found.values() for path in paths}
    only = f" ({', '.join(found)} only)" if found and len(found) < len(entry.splits) else ""
    notes = dict.fromkeys(source.note for source, _ in found.values() if source.note)
    return "; ".join([", ".join(sorted(folders)) + only, *notes]) if found else "not here"
