"""Score files of any size and number: one file of predictions for each, which appears as a whole or not at all."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import joblib
from filelock import FileLock, Timeout
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from fsvi.calibration import Referral
from fsvi.errors import FileFormatError, FSVIError, InvalidInputError
from fsvi.scoring.scorers import ModelFile, Scorer, Tell
from fsvi.scoring.writing import write_parts
from fsvi.serialization import building_from, check_writable, reason, remove_leftovers, write_bytes
from fsvi.tables.reading import ARRAY_ENDINGS, CSV_ENDINGS, PARQUET_ENDINGS
from fsvi.validation import check_count

_FORMAT = 4
_ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS, *ARRAY_ENDINGS)
_OWN = ".fsvi"
"""The folder of receipts and locks among the predictions; readers of whole folders leave out names with a dot."""
_LINE_EVERY = 10.0
_MOST_TOLD = 20


@dataclass(frozen=True)
class ScoringReport:
    """What `predict_files` did.

    Attributes:
        rows: The number of rows with predictions, those that were there before included.
        new_rows: The number of rows that were predicted by this call.
        files: The number of files with predictions.
        found: The number of those that were there before, or that another process made meanwhile.
        failed: Why files have no predictions, by file.
    """

    rows: int
    new_rows: int
    files: int
    found: int
    failed: dict[str, str]

    def failures(self) -> str:
        """One sentence about the files without predictions."""
        first = next(iter(self.failed.values()))
        return f"{len(self.failed)} of {self.files + len(self.failed)} files could not be scored; the first: {first}"

    def __str__(self) -> str:
        found = f", {self.found} of them before or by another process" if self.found else ""
        return f"{self.rows:,} rows in {self.files} files are scored{found}."


def predict_files(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    samples: int | None = None,
    net: str | None = None,
    device: str | None = None,
    referral: Referral | None = None,
    jobs: int = 1,
    tell: Tell = print,
) -> ScoringReport:
    """Predict all rows of many files in constant memory; this is `fsvi predict model inputs --out folder/`.

    Every file gets a file of predictions with the same rows in the same order. It appears when it is complete. A call
    after an interruption, with the same model and settings, makes those that are missing, and those whose input has
    changed. Several calls at the same time, also on several machines with a common file system, share the files.

    A file that cannot be used costs only itself; the report says why. If none can be used, that is an error.

    Args:
        model: A file that an estimator's or a method's `save` wrote.
        inputs: Files, folders, and patterns such as "data/part-*.parquet". For an estimator, .parquet and .csv; for a
            method also .npy and .npz.
        out: The folder of predictions.
        keep: Columns to carry over to the predictions, such as a key.
        samples: The number of draws of the function; None for the model's own, or 100.
        net: `module:function` that makes the network, where the file does not describe it.
        device: Where to predict; None for the CPU.
        referral: Which predictions to keep, for a column `decision`.
        jobs: The number of files that are scored at the same time, in processes of their own.
        tell: A function that shows a line of text, such as every ten seconds how many files are done.

    Returns:
        How many rows and files have predictions now, and which files have none and why.

    Examples:
        >>> import numpy as np
        >>> fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical()).save("model.fsvi")
        >>> np.save("points.npy", np.zeros((10, 2), dtype=np.float32))
        >>> report = fsvi.predict_files("model.fsvi", "points.npy", "scored")
        >>> report.rows
        10
    """
    source = ModelFile(Path(model).absolute(), net, device, samples)
    model_hash = _hash(source.path)
    samples = _loaded(source, model_hash).samples
    out = check_writable(out).absolute()  # workers may be in another folder
    files = find_files([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs, out)
    # what predictions depend on besides the input; how rows are cut into batches is not among it
    by = {"format": _FORMAT, "model": model_hash, "net": net, "samples": samples, "keep": list(keep)}
    _claim(out, {**by, "referral": None if referral is None else referral.to_dict()}, files)
    todo = [_Job(path, out / name, source, model_hash, tuple(keep), referral) for name, path in files.items()]
    outcomes = _score_all(todo, check_count("jobs", jobs), tell)
    failed = {str(each.path): each.error for each in outcomes if each.error is not None}
    done = [each for each in outcomes if each.error is None]
    if not done:
        raise InvalidInputError(next(iter(failed.values())))
    return ScoringReport(
        rows=sum(each.rows for each in done),
        new_rows=sum(each.rows for each in done if each.is_new),
        files=len(done),
        found=sum(not each.is_new for each in done),
        failed=failed,
    )


def predict_file(scorer: Scorer, path: Path, out: Path, keep: Sequence[str] = (), tell: Tell = print) -> Counter[str]:
    """Predict the rows of one file, and count them: `inputs`, and with a referral those to `keep` and to `refer`."""
    counts, before = Counter[str](), _state(path)

    def parts() -> Iterator[Mapping[str, Any]]:
        with building_from(path):
            for columns in scorer.parts(path, keep, once(tell)):
                counts["inputs"] += len(next(iter(columns.values())))
                counts.update(columns.get("decision", ()))
                yield columns
            if _state(path) != before:
                raise InvalidInputError(f"{path} was changed while it was scored: start again.")

    write_parts(out, parts())
    return counts


def once(tell: Tell) -> Tell:
    """Tell what is new; counts differ from part to part, so a column's first sentence stands for all."""
    told: set[str] = set()

    def say(sentence: str) -> None:
        start = " ".join(sentence.split(" ")[:4])
        if start not in told and len(told) < _MOST_TOLD:
            told.add(start)
            tell(sentence)

    return say


# Files and where their predictions go ---------------------------------------------------------------------------------


def find_files(inputs: Iterable[str | os.PathLike[str]], out: Path) -> dict[str, Path]:
    """The files to score, in order, by the names of their predictions: files, those in folders, and patterns.

    Files in `out` are not among them.
    """
    found: set[Path] = set()
    for each in inputs:
        paths = [path for path in _matching(os.fspath(each)) if out.resolve() not in path.resolve().parents]
        if not paths:
            raise InvalidInputError(
                f"{os.fspath(each)} matches no file: give files, folders or patterns of {', '.join(_ENDINGS)} files."
            )
        found.update(paths)
    base = Path(os.path.commonpath([path.parent for path in found]))
    names: dict[str, Path] = {}
    for path in sorted(found):
        name = _output_name(path.relative_to(base))
        if (other := names.setdefault(name, path)) != path:
            raise InvalidInputError(f"{other} and {path} would both become {out / name}: rename one.")
    return names


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return [each.absolute() for each in path.rglob("*") if _is_data(each.relative_to(path)) and each.is_file()]
    paths = [path] if path.exists() else map(Path, glob.glob(pattern, recursive=True))
    return [each.absolute() for each in paths if each.is_file()]


def _is_data(path: Path) -> bool:
    """Whether it is part of a dataset to other programs: no name in its path starts with a dot or an underscore."""
    return path.name.lower().endswith(_ENDINGS) and not any(part.startswith((".", "_")) for part in path.parts)


def _output_name(path: Path) -> str:
    """Parquet for Parquet and arrays, CSV for text."""
    ending = next((each for each in _ENDINGS if path.name.lower().endswith(each)), None)
    if ending is None:
        raise InvalidInputError(f"{path} ends in {path.suffix!r}: files that can be scored end in {_ENDINGS}.")
    return path.as_posix()[: -len(ending)] + (".csv" if ending in CSV_ENDINGS else ".parquet")


def _claim(out: Path, by: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a folder with other predictions, or with files of somebody else; mark a new one with the settings."""
    path = out / _OWN / "settings.json"
    if not path.exists():
        taken = next((out / name for name in names if (out / name).exists()), None)
        if taken is not None:
            raise InvalidInputError(f"{taken} was not written by fsvi predict: remove it, or choose another folder.")
        write_bytes(path, json.dumps(by).encode())
    with building_from(path):
        found = dict(json.loads(path.read_text()))
    for name, value in by.items():
        if found.get(name) != value:
            what = "another model" if name == "model" else f"{name}={found.get(name)!r}, not {value!r}"
            raise InvalidInputError(f"{out} has predictions with {what}: choose another folder, or remove that one.")


# Scoring --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """One file to score, in any process."""

    path: Path
    output: Path
    model: ModelFile
    model_hash: str
    keep: tuple[str, ...]
    referral: Referral | None

    def beside(self, ending: str) -> Path:
        """The receipt or the lock of the predictions; the system releases the lock when its process ends."""
        return self.output.parent / _OWN / f"{self.output.name}{ending}"

    def found(self) -> int | None:
        """The rows of predictions that exist for this input, by the receipt that was written after them."""
        with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
            receipt = json.loads(self.beside(".json").read_text())
            if receipt["input"] == _state(self.path) and receipt["bytes"] == self.output.stat().st_size:
                return int(receipt["rows"])
        return None


@dataclass(frozen=True)
class _Outcome:
    """What became of a file: the number of its rows, whether they were scored now, and what was noticed."""

    path: Path
    rows: int = 0
    is_new: bool = False
    is_busy: bool = False
    told: list[str] = field(default_factory=list)
    error: str | None = None


def _score(job: _Job, waits: bool) -> _Outcome:
    """Score one file, unless that is done, or another process is doing it. Errors are part of the outcome."""
    try:
        job.beside(".lock").parent.mkdir(parents=True, exist_ok=True)
        with FileLock(job.beside(".lock")).acquire(timeout=-1 if waits else 0):
            if (rows := job.found()) is not None:
                return _Outcome(job.path, rows)
            remove_leftovers(job.output)
            scorer, told, state = _loaded(job.model, job.model_hash), list[str](), _state(job.path)
            scorer.referral = job.referral
            rows = predict_file(scorer, job.path, job.output, job.keep, told.append)["inputs"]
            receipt = {"input": state, "bytes": job.output.stat().st_size, "rows": rows}
            write_bytes(job.beside(".json"), json.dumps(receipt).encode())
            return _Outcome(job.path, rows, is_new=True, told=told)
    except Timeout:
        return _Outcome(job.path, is_busy=True)
    except Exception as error:
        said = str(error) if isinstance(error, FSVIError) else f"{job.path} cannot be scored: {reason(error)}."
        return _Outcome(job.path, error=said)


def _state(path: Path) -> list[int]:
    """By what a change of a file is noticed: its size, and the time of the last change."""
    try:
        status = path.stat()
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {reason(error)}.") from error
    return [status.st_size, status.st_mtime_ns]


@lru_cache(maxsize=1)
def _loaded(model: ModelFile, expected: str) -> Scorer:
    """The model, loaded once per process."""
    if _hash(model.path) != expected:
        raise InvalidInputError(f"{model.path} was changed while files were scored: start again.")
    return model.load()


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {reason(error)}.") from error


def _score_all(jobs: Sequence[_Job], num: int, tell: Tell) -> list[_Outcome]:
    """All outcomes, in order; files that another process is scoring come last."""
    outcomes: dict[Path, _Outcome] = {}
    surprise, said = once(tell), time.monotonic()
    for waits in (False, True):
        todo = [job for job in jobs if job.path not in outcomes]
        if waits and todo:
            tell(f"Waiting for {len(todo)} files that another process is scoring.")
        for outcome in _in_processes(todo, waits, num) if num > 1 else (_score(job, waits) for job in todo):
            if outcome.is_busy:
                continue
            outcomes[outcome.path] = outcome
            for sentence in outcome.told:
                surprise(f"{outcome.path}: {sentence}")
            if time.monotonic() - said >= _LINE_EVERY:
                tell(f"{len(outcomes)} of {len(jobs)} files are done.")
                said = time.monotonic()
    return [outcomes[job.path] for job in jobs]


def _in_processes(jobs: Sequence[_Job], waits: bool, num: int) -> Iterator[_Outcome]:
    """Outcomes as they come. After a process was killed, the files that are left are scored by one at a time."""
    left = {job.path: job for job in jobs}
    parallel = joblib.Parallel(num, backend="loky", return_as="generator_unordered", pre_dispatch=num, batch_size=1)
    try:
        with suppress(BrokenProcessPool):
            for outcome in parallel(joblib.delayed(_score)(job, waits) for job in jobs):
                del left[outcome.path]
                yield outcome
        for job in left.values():
            try:
                yield get_reusable_executor(max_workers=1).submit(_score, job, True).result()
            except BrokenProcessPool:
                yield _Outcome(job.path, error=f"{job.path}: its process was killed, perhaps for lack of memory.")
    finally:
        get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)
