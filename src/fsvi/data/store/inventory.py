"""What of the catalogue is here, where, and whether it is what was published."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsvi.data.dataset import Split
from fsvi.data.store.catalogue import ENTRIES, entry_of
from fsvi.data.store.files import Entry
from fsvi.data.store.hashes import Verdict, check_file
from fsvi.data.store.locations import cache, find


@dataclass(frozen=True)
class Row:
    """One dataset in the list of all.

    Attributes:
        name: Its name.
        what: What it is.
        licence: Its licence.
        where: The folder it was found in, "cache", or "not here"; with the splits when not all are there, and what
            stands in for published files.
        size: Bytes of the files found.
    """

    name: str
    what: str
    licence: str
    where: str
    size: int


@dataclass(frozen=True)
class FileCheck:
    """One file of a dataset: where it is, and whether its content is the published one.

    Attributes:
        file: Its path below a data folder.
        path: Where it was found; None when missing.
        result: "ok", "wrong", "missing", "differs" for another content of a file that users make themselves, or
            "unverified" where no hash is known for certain.
    """

    file: str
    path: Path | None
    result: Verdict | Literal["missing"]


def catalogue() -> list[Row]:
    """Every dataset with its licence, where it is, and its size; nothing is downloaded."""
    return [_row(entry) for entry in ENTRIES.values()]


def verify(name: str) -> list[FileCheck]:
    """The hash of each file of a dataset compared with the one known for it; nothing is downloaded."""
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


def _row(entry: Entry) -> Row:
    found = {split: hit for split in entry.splits if (hit := find(entry, split))}
    paths = {path for _, paths in found.values() for path in paths}
    where = ", ".join(sorted({_folder(path) for path in paths})) or "not here"
    if found and len(found) < len(entry.splits):
        where += f" ({', '.join(found)} only)"
    stand_ins = [source.note for split, (source, _) in found.items() if source.note and entry.plain(split)]
    where += "".join(f"; {note}" for note in stand_ins)
    return Row(entry.name, entry.what, entry.licence, where, sum(map(_bytes, paths)))


def _folder(path: Path) -> str:
    return "cache" if path.is_relative_to(cache()) else str(path.parent)


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
