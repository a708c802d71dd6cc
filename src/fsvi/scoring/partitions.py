"""Which files to score, where their predictions go, and which of them are done."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from fsvi.errors import InvalidInputError
from fsvi.serialization import write_bytes
from fsvi.tables.reading import CSV_ENDINGS, PARQUET_ENDINGS

ARRAY_ENDINGS = (".npy", ".npz")
_ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS, *ARRAY_ENDINGS)
_OWN = ".fsvi"
"""The folder of receipts and locks among the predictions; readers of whole folders leave out names with a dot."""


@dataclass(frozen=True)
class Partition:
    """A file to score.

    Attributes:
        path: The file.
        name: The name of its predictions, relative to the folder of all predictions.
        out: The folder of all predictions.
    """

    path: Path
    name: str
    out: Path

    @property
    def output(self) -> Path:
        """The file of its predictions."""
        return self.out / self.name

    @property
    def receipt_path(self) -> Path:
        """A file that says by what the predictions were made."""
        return self._own(".json")

    @property
    def progress_path(self) -> Path:
        """A file with the number of rows that are done, while somebody works on it."""
        return self._own(".rows")

    def lock(self) -> FileLock:
        """Held by the process that scores it; the system releases it when that process ends."""
        path = self._own(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def source(self) -> dict[str, Any]:
        """By what a changed input is noticed."""
        status = self.path.stat()
        return {"file": self.path.name, "bytes": status.st_size, "modified": status.st_mtime_ns}

    def receipt(self) -> dict[str, Any] | None:
        """What `write_receipt` wrote, if the predictions exist; None without any.

        A receipt is written when all predictions are on the disk, just before they get their name. So predictions with
        this name belong to the receipt, and those without one are not ours.
        """
        if not self.output.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self.receipt_path.read_text())
            if found["written"] == self.output.stat().st_size:
                return found
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise InvalidInputError(
            f"{self.output} exists and was not written by fsvi predict, or was changed: remove it, or choose another "
            "folder."
        )

    def write_receipt(self, values: Mapping[str, Any]) -> None:
        """Write down by what the predictions were made."""
        write_bytes(self.receipt_path, json.dumps(values).encode())

    def _own(self, ending: str) -> Path:
        return self.out / _OWN / f"{self.name}{ending}"


def find_partitions(inputs: Iterable[str | os.PathLike[str]], out: Path) -> list[Partition]:
    """The files to score, in order, each once.

    Args:
        inputs: Files, folders, which stand for all files in them that can be scored, and patterns such as
            `data/part-*.parquet`.
        out: The folder of predictions. Files in it are not inputs.
    """
    found: dict[Path, None] = {}
    for each in inputs:
        paths = [path for path in _matching(os.fspath(each)) if out.resolve() not in path.resolve().parents]
        if not paths:
            raise InvalidInputError(
                f"{os.fspath(each)} matches no file: give files, folders or patterns of {', '.join(_ENDINGS)} files."
            )
        found.update(dict.fromkeys(paths))
    paths = sorted(found)
    base = Path(os.path.commonpath([path.parent for path in paths]))
    partitions = [Partition(path, _output_name(path.relative_to(base)), out) for path in paths]
    names: dict[str, Path] = {}
    for partition in partitions:
        other = names.setdefault(partition.name, partition.path)
        if other != partition.path:
            raise InvalidInputError(f"{other} and {partition.path} would both become {partition.output}: rename one.")
    return partitions


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path.absolute()]
    if path.is_dir():
        return [each.absolute() for each in path.rglob("*") if _is_data(each.relative_to(path)) and each.is_file()]
    return [Path(each).absolute() for each in glob.glob(pattern, recursive=True) if Path(each).is_file()]


def _is_data(path: Path) -> bool:
    """Whether it is part of a dataset to other programs: no name in its path starts with a dot or an underscore."""
    return path.name.lower().endswith(_ENDINGS) and not any(part.startswith((".", "_")) for part in path.parts)


def _output_name(path: Path) -> str:
    """Parquet for Parquet and arrays, CSV for text, compressed if the text is."""
    stem, ending = next(
        ((path.name[: -len(each)], each) for each in _ENDINGS if path.name.lower().endswith(each)), (path.name, None)
    )
    if ending is None:
        raise InvalidInputError(f"{path} ends in {path.suffix!r}: files that can be scored end in {_ENDINGS}.")
    kind = (ending if ending in (".csv", ".csv.gz") else ".csv") if ending in CSV_ENDINGS else ".parquet"
    return (path.parent / f"{stem}{kind}").as_posix()
