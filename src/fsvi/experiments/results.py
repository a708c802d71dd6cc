"""Results as files: one JSON for every run, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fsvi.errors import FileFormatError
from fsvi.experiments.experiment import Order
from fsvi.serialization import write_bytes

FORMAT = 1


@dataclass(frozen=True)
class Result:
    """What a run found, and everything that it depends on.

    Attributes:
        task, method, context, profile, seed: What was run.
        settings: The method's, `fit`'s and others that differ from the recipe's.
        metrics: Numbers by name; shares are fractions of 1.
        curves: What figures are drawn from.
        history: Terms of the loss by epoch, thinned.
        data: Name, split, size, hash and note of every dataset.
        notes: What a reader of the figures must know.
        seconds: Wall time of training and of the evaluation.
        versions: Of Python and of packages.
        machine: System, processor, cores.
        commit: Of the source, where it is known.
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
        """The row that the result belongs to: the method, and its context where it has one."""
        return self.method if self.context is None else f"{self.method} ({self.context})"


def result_path(out: Path, order: Order) -> Path:
    """Where the result of `order` belongs."""
    method = order.method.replace(":", "-")
    row = method if order.context is None else f"{method}-{order.context}"
    return out / order.task / f"{row}.{order.profile}.{order.seed}.json"


def write_result(path: Path, result: Result) -> None:
    """Replace the file atomically; every field is a line of its own, and what is not a number is null."""
    values = {name: _standard(value) for name, value in asdict(result).items()}
    lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in values.items())
    write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _standard(value: Any) -> Any:
    """The value in standard JSON, which has no NaN: a curve has one where nothing was to be measured."""
    if isinstance(value, dict):
        return {name: _standard(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_result(path: Path) -> Result:
    """Read a file that `write_result` wrote; anything else is refused with the file's name."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is truncated or not JSON: delete it and run it again.") from error
    known = {field.name for field in fields(Result)}
    if not isinstance(document, dict) or document.get("format") != FORMAT or set(document) != known:
        raise FileFormatError(f"{path} is not a result that this version of fsvi can read: delete it and run it again.")
    return Result(**document)


def read_results(folder: Path) -> Iterator[tuple[Path, Result | FileFormatError]]:
    """Every result below `folder`, or why it cannot be read; folders whose name begins with a dot are left out."""
    for path in sorted(folder.rglob("*.json")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        try:
            yield path, read_result(path)
        except FileFormatError as error:
            yield path, error
