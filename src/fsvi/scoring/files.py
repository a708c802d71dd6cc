"""Score files of any size and number: one file of predictions for each, which appears as a whole or not at all."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import joblib
from filelock import FileLock, Timeout
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from fsvi.calibration import Referral
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.scoring.scorers import ModelFile, Scorer, tell_once
from fsvi.scoring.writing import new_file
from fsvi.serialization import building_from, check_writable, reason, remove_leftovers, write_bytes
from fsvi.tables.reading import ARRAY_ENDINGS, CSV_ENDINGS, PARQUET_ENDINGS
from fsvi.validation import check_count

_FORMAT = 2
_ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS, *ARRAY_ENDINGS)
_OWN = ".fsvi"
"""The folder of receipts and locks among the predictions; readers of whole folders leave out names with a dot."""
_LINE_EVERY = 10.0
Tell = Callable[[str], object]
_CountRows = Callable[[int], None]


@dataclass(frozen=True)
class ScoringReport:
    """What `predict_files` did.

    Attributes:
        rows: The number of rows with predictions, those that were there before included.
        new_rows: The number of rows that were predicted by this call.
        files: The number of files with predictions.
        found: The number of those that were there before, or that another process made meanwhile.
        failed: Why files have no predictions, by file.
        seconds: How long it took.
    """

    rows: int
    new_rows: int
    files: int
    found: int
    failed: dict[str, str]
    seconds: float

    def failures(self) -> str:
        """One sentence about the files without predictions."""
        first = next(iter(self.failed.values()))
        return f"{len(self.failed)} of {self.files + len(self.failed)} files could not be scored; the first: {first}"

    def __str__(self) -> str:
        found = f", {self.found} of them before or by another process" if self.found else ""
        speed = f" {self.new_rows / self.seconds:,.0f} rows per second." if self.new_rows else ""
        return f"{self.rows:,} rows in {self.files} files are scored{found}.{speed}"


def predict_files(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    samples: int | None = None,
    seed: int | None = None,
    batch_size: int = 512,
    net: str | None = None,
    device: str | None = None,
    referral: Referral | None = None,
    jobs: int = 1,
    tell: Tell = print,
    progress: bool = True,
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
        samples: The number of draws of the function; None for the estimator's own, or 100.
        seed: The seed of the draws; None for the estimator's own, or 0.
        batch_size: The number of inputs per pass through a method's network.
        net: `module:function` that makes the network, where the file does not describe it.
        device: Where to predict; None for the CPU.
        referral: Which predictions to keep, for a column `decision`.
        jobs: The number of files that are scored at the same time, in processes of joblib. Inside
            `joblib.parallel_config("ray")` or "dask" they run there.
        tell: A function that shows a line of text.
        progress: Whether to tell every ten seconds how many rows are done.

    Returns:
        How many rows and files have predictions now, and which files have none and why.

    Examples:
        >>> import numpy as np
        >>> fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical()).save("model.fsvi")
        >>> np.save("points.npy", np.zeros((10, 2), dtype=np.float32))
        >>> report = fsvi.predict_files("model.fsvi", "points.npy", "scored", tell=lambda line: None, progress=False)
        >>> report.rows
        10
    """
    begun = time.monotonic()
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    check_count("batch_size", batch_size)
    source = ModelFile(Path(model).absolute(), net, device, samples, seed, batch_size)
    model_hash = _hash(source.path)
    scorer = _loaded(source, model_hash)
    # what predictions depend on besides the input; how rows are cut into batches is not among it
    by = {"format": _FORMAT, "model": model_hash, "net": net, "samples": scorer.samples, "seed": scorer.seed}
    by |= {"keep": list(keep), "referral": None if referral is None else referral.to_dict()}
    out = check_writable(out).absolute()  # workers may be in another folder
    files = find_files(given, out)
    scorer.check_keep(keep)
    todo = {name: _Job(path, out / name, source, tuple(keep), by, referral) for name, path in files.items()}
    for job in todo.values():
        job.found()  # a folder with other predictions is refused before anything is scored
    outcomes = _score_all(todo, check_count("jobs", jobs), tell, progress)
    failed = {str(files[name]): each.error for name, each in outcomes.items() if each.error is not None}
    done = [each for each in outcomes.values() if each.error is None]
    if not done:
        raise InvalidInputError(next(iter(failed.values())))
    return ScoringReport(
        rows=sum(each.rows for each in done),
        new_rows=sum(each.rows for each in done if each.is_new),
        files=len(done),
        found=sum(not each.is_new for each in done),
        failed=failed,
        seconds=time.monotonic() - begun,
    )


def predict_file(
    scorer: Scorer,
    path: Path,
    out: Path,
    keep: Sequence[str] = (),
    tell: Tell = print,
    count: _CountRows | None = None,
    before: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Predict the rows of one file, and count them. `before(rows, bytes)` is called when all of them are written."""
    counts: dict[str, Any] = {"inputs": 0}
    if scorer.referral is not None:
        counts |= {"kept": 0, "referred": 0, "referral": scorer.referral.to_dict()}
    told: set[str] = set()

    def finish(size: int) -> None:
        if before is not None:
            before(counts["inputs"], size)
        elif not counts["inputs"]:
            raise InvalidInputError(f"{path} has no rows that can be predicted.")

    with new_file(out, counts, finish) as writer, building_from(path):
        for part in scorer.parts(path, keep):
            writer.write(part.columns)
            tell_once(part.told, told, tell)
            counts["inputs"] += part.rows
            if scorer.referral is not None:
                kept = int((part.columns["decision"] == "keep").sum())
                counts["kept"] += kept
                counts["referred"] += part.rows - kept
            if count is not None:
                count(part.rows)
    return counts


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
    ending = next((each for each in sorted(_ENDINGS, key=len)[::-1] if path.name.lower().endswith(each)), None)
    if ending is None:
        raise InvalidInputError(f"{path} ends in {path.suffix!r}: files that can be scored end in {_ENDINGS}.")
    kind = (ending if ending == ".csv.gz" else ".csv") if ending in CSV_ENDINGS else ".parquet"
    return (path.parent / f"{path.name[: -len(ending)]}{kind}").as_posix()


# Scoring --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """What became of a file: the number of its rows, whether they were scored now, and what was noticed."""

    rows: int = 0
    is_new: bool = False
    is_busy: bool = False
    told: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class _Job:
    """One file to score, in any process; `by` is what the predictions depend on besides the input."""

    path: Path
    output: Path
    model: ModelFile
    keep: tuple[str, ...]
    by: Mapping[str, Any]
    referral: Referral | None = None
    waits: bool = False

    def beside(self, ending: str) -> Path:
        """The receipt or the lock of the predictions; the system releases the lock when its process ends."""
        return self.output.parent / _OWN / f"{self.output.name}{ending}"

    def source(self) -> dict[str, Any]:
        """By what a changed input is noticed."""
        status = self.path.stat()
        return {"file": self.path.name, "bytes": status.st_size, "modified": status.st_mtime_ns}

    def found(self) -> int | None:
        """The rows of predictions that exist for this input; those of another model or with other settings are refused.

        A receipt is written when all predictions are on the disk, just before they get their name. It says how large
        the file is that they replace, so that a kill in between is noticed.
        """
        if not self.output.exists():
            return None
        size, receipt = self.output.stat().st_size, dict[str, Any]()
        with suppress(OSError, ValueError, RecursionError):
            receipt = json.loads(self.beside(".json").read_text())
        if not isinstance(receipt, dict) or size not in (receipt.get("replaces"), receipt.get("written")):
            raise InvalidInputError(
                f"{self.output} exists and was not written by fsvi predict, or was changed: remove it, or choose "
                "another folder."
            )
        if size == receipt.get("replaces"):
            return None
        for name, value in self.by.items():
            if receipt["by"].get(name) != value:
                what = "another model" if name == "model" else f"{name}={receipt['by'].get(name)!r}, not {value!r}"
                raise InvalidInputError(
                    f"{self.output} was scored with {what}: choose another folder, or remove that one."
                )
        return int(receipt["rows"]) if receipt["input"] == self.source() else None

    def score(self, count: _CountRows | None) -> _Outcome:
        """Score the file, whatever exists."""
        scorer = _loaded(self.model, self.by["model"])
        scorer.referral = self.referral
        receipt: dict[str, Any] = {"by": dict(self.by), "input": self.source()}
        told: list[str] = []
        self.output.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.output)

        def sign(rows: int, size: int) -> None:
            if self.source() != receipt["input"]:
                raise InvalidInputError(f"{self.path} was changed while it was scored: start again.")
            receipt.update(rows=rows, written=size)
            earlier = {"replaces": self.output.stat().st_size} if self.output.exists() else {}
            write_bytes(self.beside(".json"), json.dumps({**receipt, **earlier}).encode())

        predict_file(scorer, self.path, self.output, self.keep, told.append, count, sign)
        write_bytes(self.beside(".json"), json.dumps(receipt).encode())
        return _Outcome(receipt["rows"], is_new=True, told=told)


def _score_file(job: _Job, count: _CountRows | None = None) -> _Outcome:
    """Score one file, unless that is done, or another process is doing it. Errors are part of the outcome."""
    try:
        lock = job.beside(".lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock).acquire(timeout=-1 if job.waits else 0):
            rows = job.found()
            return job.score(count) if rows is None else _Outcome(rows)
    except Timeout:
        return _Outcome(is_busy=True)
    except Exception as error:
        said = str(error) if isinstance(error, FSVIError) else f"{job.path} cannot be scored: {reason(error)}."
        return _Outcome(error=said)


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


# Several at a time ----------------------------------------------------------------------------------------------------


def _score_all(jobs: Mapping[str, _Job], num: int, tell: Tell, progress: bool) -> dict[str, _Outcome]:
    """All outcomes; files that another process is scoring come last."""
    told: set[str] = set()
    outcomes: dict[str, _Outcome] = {}
    rows, begun = 0, time.monotonic()
    said = begun

    def count(new: int) -> None:
        nonlocal rows, said
        rows, now = rows + new, time.monotonic()
        if progress and now - said >= _LINE_EVERY:
            said, done = now, f"{len(outcomes)} of {len(jobs)} files"
            tell(f"{rows:,} new rows, {done}, {rows / (now - begun):,.0f} rows per second.")

    for waits in (False, True):
        todo = {name: replace(job, waits=waits) for name, job in jobs.items() if name not in outcomes}
        if waits and todo:
            tell(f"Waiting for {len(todo)} files that another process is scoring.")
        one_by_one = ((name, _score_file(job, count)) for name, job in todo.items())
        for name, outcome in _in_processes(todo, num) if num > 1 else one_by_one:
            if not outcome.is_busy:
                outcomes[name] = outcome
                count(outcome.rows if num > 1 and outcome.is_new else 0)
                tell_once([f"{name}: {sentence}" for sentence in outcome.told], told, tell)
    return outcomes


def _in_processes(jobs: Mapping[str, _Job], num: int) -> Iterator[tuple[str, _Outcome]]:
    """Outcomes as they come. When a process is killed, those that were running are done again, each alone."""
    left = dict(jobs)
    backend = joblib.parallel.get_active_backend()[0]
    returns = "generator_unordered" if backend.supports_return_generator else "list"
    started: list[str] = []

    def feed() -> Iterator[Any]:
        for name, job in list(left.items()):
            started.append(name)
            yield joblib.delayed(_named)(_score_file, name, job)

    try:
        while left:
            started.clear()
            try:
                for name, outcome in joblib.Parallel(num, return_as=returns, pre_dispatch=num, batch_size=1)(feed()):
                    del left[name]
                    yield name, outcome
            except BrokenProcessPool:
                for name in [name for name in started if name in left]:
                    yield name, _alone(left.pop(name))
    finally:
        if returns != "list":
            get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)


def _named(score: Callable[[_Job], _Outcome], name: str, job: _Job) -> tuple[str, _Outcome]:
    return name, score(job)


def _alone(job: _Job) -> _Outcome:
    try:
        outcome: _Outcome = get_reusable_executor(max_workers=1).submit(_score_file, job).result()
        return outcome
    except BrokenProcessPool:
        return _Outcome(error=f"{job.path}: its process was killed, perhaps for lack of memory.")
