"""Locally available datasets and their checksums."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paper.data.dataset import Split
from paper.data.store.catalog import ENTRIES, entry_of
from paper.data.store.files import Entry
from paper.data.store.hashes import Verdict, check_file
from paper.data.store.locations import cache, find


@dataclass(frozen=True)
class DatasetInfo:
    """One dataset of the catalog and its local files.

    Attributes:
        name: Its name.
        description: A short description.
        license: Its license.
        where: The folder with its files, "cache", or "not here"; with the splits if some are missing, and with the
            notes of files that replace published ones.
        size: The size of the local files in bytes.
    """

    name: str
    description: str
    license: str
    where: str
    size: int


@dataclass(frozen=True)
class FileCheck:
    """One file of a dataset, with its location and the result of its checksum.

    Attributes:
        file: Its path inside a data folder.
        path: The path where it was found; None if missing.
        result: "ok", "wrong", "missing", "differs" if users make the file themselves and its content is not the known
            one, or "unverified" if no hash is known.
    """

    file: str
    path: Path | None
    result: Verdict | Literal["missing"]


def catalog() -> list[DatasetInfo]:
    """Every dataset with its license, location and size; nothing is downloaded."""
    return [_describe(entry) for entry in ENTRIES.values()]


def verify(name: str) -> list[FileCheck]:
    """Compare each local file of a dataset with its known hash; nothing is downloaded.

    Args:
        name: The dataset's name.
    """
    entry = entry_of(name)
    checks = [check for split in entry.splits for check in _verify_split(entry, split)]
    return list(dict.fromkeys(checks))


def _verify_split(entry: Entry, split: Split) -> list[FileCheck]:
    found = find(entry, split)
    if found is None:
        sources = entry.splits[split]
        wanted = next((source for source in sources if source.downloadable), sources[0])
        return [FileCheck(file.name, None, "missing") for file in wanted.files]
    source, paths = found
    pairs = zip(source.files, paths, strict=True)
    return [FileCheck(file.name, path, check_file(path, file)) for file, path in pairs]


def _describe(entry: Entry) -> DatasetInfo:
    found = {split: hit for split in entry.splits if (hit := find(entry, split))}
    paths = {path for _, paths in found.values() for path in paths}
    where = ", ".join(sorted({_folder(path) for path in paths})) or "not here"
    if found and len(found) < len(entry.splits):
        where += f" ({', '.join(found)} only)"
    substitutes = [source.note for split, (source, _) in found.items() if source.note and entry.plain(split)]
    where += "".join(f"; {note}" for note in substitutes)
    return DatasetInfo(entry.name, entry.description, entry.license, where, sum(map(_bytes, paths)))


def _folder(path: Path) -> str:
    return "cache" if path.is_relative_to(cache()) else str(path.parent)


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
