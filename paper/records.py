"""Result files: one JSON file per run, written atomically, with a checksum of its contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fsvi.errors import FileFormatError
from fsvi.serialization import write_bytes
from paper.experiment import Order

FORMAT = 2
DIAGNOSIS = ".diagnosis.json"
"""Suffix of the file with the diagnosis of a result."""


@dataclass(frozen=True)
class Result:
    """The results of a run, and everything they depend on; shares among the metrics are fractions of 1.

    `seconds` are wall times of training and evaluation, and of training the runs that this one starts from.
    """

    task: str
    method: str
    context: str | None
    profile: str
    seed: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]
    curves: Mapping[str, Any]
    history: Mapping[str, list[float]]
    data: list[dict[str, Any]]
    notes: list[str]
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    commit: str | None
    format: int = FORMAT

    @property
    def label(self) -> str:
        """The table row of the result: the method, and its context if it has one."""
        return self.method if self.context is None else f"{self.method} ({self.context})"


def result_path(out: Path, order: Order) -> Path:
    """The path of a result below the folder of results."""
    method = order.method.replace(":", "-")
    row = method if order.context is None else f"{method}-{order.context}"
    return out / order.task / f"{row}.{order.profile}.{order.seed}.json"


def model_path(out: Path, result: Path) -> Path:
    """The path of the trained model of a result."""
    return out / "models" / result.relative_to(out).with_suffix(".fsvi")


def write_result(path: Path, result: Result) -> None:
    """Replace the file atomically."""
    write_document(path, asdict(result))


def write_document(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the file atomically with JSON: one value per line, and a checksum on the last; NaN becomes null."""
    standard = json.loads(json.dumps(values), parse_constant=lambda _: None)
    standard["sha256"] = checksum(standard)
    lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in standard.items())
    write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def checksum(values: Mapping[str, Any]) -> str:
    """The SHA-256 of a document's contents, independent of its formatting."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_result(path: Path) -> Result:
    """Read a file that `write_result` wrote; anything else is refused with the name of the file."""
    document = read_document(path)
    if document.get("format") != FORMAT or set(document) != {field.name for field in fields(Result)}:
        raise FileFormatError(f"{path} is not a result that this version can read: delete it and run it again.")
    return Result(**document)


def read_document(path: Path) -> dict[str, Any]:
    """Read a file that `write_document` wrote; its checksum must fit."""
    try:
        document = dict(json.loads(path.read_text("utf-8")))
        given = document.pop("sha256")
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileFormatError(f"{path} is truncated or not a result: delete it and make it again.") from error
    if given != checksum(document):
        raise FileFormatError(f"{path} was changed after it was written: its checksum does not match.")
    return document


def read_results(folder: Path) -> Iterator[tuple[Path, Result | FileFormatError]]:
    """Every result below `folder`, or the reason why it cannot be read; folders that begin with a dot are skipped."""
    for path in sorted(folder.rglob("*.json")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and not path.name.endswith(DIAGNOSIS):
            try:
                yield path, read_result(path)
            except FileFormatError as error:
                yield path, error


def duration(seconds: float) -> str:
    """A wall time that is easy to read."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
