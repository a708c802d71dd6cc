"""Score files of any size and number: one file of predictions for each, which appears as a whole or not at all."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import Timeout

from fsvi.calibration import Referral
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.parallel import Workers
from fsvi.scoring.partitions import Partition, find_partitions
from fsvi.scoring.progress import RowProgress
from fsvi.scoring.rows import tell_once
from fsvi.scoring.scorers import ModelFile, Scorer, num_rows
from fsvi.scoring.writing import new_file
from fsvi.serialization import building_from, check_writable, remove_leftovers
from fsvi.validation import check_count, first_line

_FORMAT = 1
_MEMORY, _COPIES = 1_200 * 2**20, 4
"""What a process takes: Python, torch and the rows in memory; and the model, in numbers of its file's size."""
Tell = Callable[[str], None]


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
    backend: str = "loky",
    tell: Tell = print,
    progress: bool | None = None,
) -> ScoringReport:
    """Predict all rows of many files in constant memory; this is `fsvi predict model inputs --out folder/`.

    Every file gets a file of predictions with the same rows in the same order. It appears when it is complete. A call
    after an interruption, with the same model and settings, makes those that are missing, and those whose input has
    changed. Several calls at the same time, also on several machines with a common file system, share the files.

    All files are looked at before the first one is scored; the error names the file and the column. A file that turns
    out to be unusable later does not stop the others.

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
        jobs: The number of files that are scored at the same time, in processes with one thread each; as many as cores
            and memory allow.
        backend: Where these processes run: "loky" on this machine, "ray" or "dask" here or on a cluster.
        tell: A function that shows a line of text.
        progress: Whether to show a progress bar; None shows it on a terminal.

    Returns:
        How many rows and files have predictions now, and which files have none and why.
    """
    begun = time.monotonic()
    given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    check_count("batch_size", batch_size)
    source = ModelFile(Path(model).absolute(), net, device, samples, seed, batch_size)
    scorer = source.load()
    memory = _MEMORY + _COPIES * source.path.stat().st_size
    workers = Workers(jobs, backend).within_machine(memory, tell)
    partitions = find_partitions(given, check_writable(out).absolute())  # workers may be in another folder
    scorer.referral = referral
    scorer.check_keep(keep)
    by = _made_by(source, scorer, keep, referral)
    todo = [Job(partition, source, tuple(keep), by, referral) for partition in partitions]
    _check(todo, scorer, tell)
    outcomes = _score_all(todo, workers, tell, progress)
    failed = {str(each.path): each.error for each in outcomes if each.error is not None}
    done = [each for each in outcomes if each.error is None]
    return ScoringReport(
        rows=sum(each.rows for each in done),
        new_rows=sum(each.rows for each in done if each.is_new),
        files=len(done),
        found=sum(not each.is_new for each in done),
        failed=failed,
        seconds=time.monotonic() - begun,
    )


@dataclass(frozen=True)
class Job:
    """One partition to score, in any process.

    Attributes:
        partition: The partition.
        model: The model.
        keep: Columns to carry over.
        by: What the predictions depend on besides the input.
        referral: Which predictions to keep.
        waits: Whether to wait while another process scores the partition.
    """

    partition: Partition
    model: ModelFile
    keep: tuple[str, ...]
    by: Mapping[str, Any]
    referral: Referral | None = None
    waits: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a partition.

    Attributes:
        path: The file.
        name: The name of its predictions.
        rows: The number of its rows.
        is_new: Whether they were scored now.
        is_busy: Whether another process is scoring it.
        told: Sentences about its rows.
        error: Why it could not be scored.
    """

    path: Path
    name: str
    rows: int = 0
    is_new: bool = False
    is_busy: bool = False
    told: list[str] = field(default_factory=list)
    error: str | None = None


def score_partition(job: Job) -> Outcome:
    """Score one partition, unless that is done, or another process is doing it. Errors are part of the outcome.

    Args:
        job: What to do.
    """
    partition = job.partition
    try:
        with partition.lock().acquire(timeout=-1 if job.waits else 0):
            receipt = _finished(job)
            if receipt is not None:
                return Outcome(partition.path, partition.name, receipt["rows"])
            return _score(job)
    except Timeout:
        return Outcome(partition.path, partition.name, is_busy=True)
    except Exception as error:
        reason = str(error) if isinstance(error, FSVIError) else f"{type(error).__name__}: {first_line(error)}."
        return Outcome(partition.path, partition.name, error=reason)


# Steps ----------------------------------------------------------------------------------------------------------------


def _check(jobs: Sequence[Job], scorer: Scorer, tell: Tell) -> None:
    """Look at all files that are not done, before any is scored; one sentence names the first that is wrong."""
    wrong: list[FSVIError] = []
    told: set[str] = set()
    for job in jobs:
        try:
            receipt = job.partition.receipt()
            if receipt is None or not _belongs(job, receipt):
                with building_from(job.partition.path):
                    tell_once(scorer.check(job.partition.path, job.keep), told, tell)
        except FSVIError as error:
            wrong.append(error)
    if wrong:
        others = f" ({len(wrong) - 1} more files cannot be used.)" if len(wrong) > 1 else ""
        raise type(wrong[0])(f"{wrong[0]} Nothing was scored.{others}")


def _score_all(jobs: Sequence[Job], workers: Workers, tell: Tell, progress: bool | None) -> list[Outcome]:
    told: set[str] = set()
    outcomes: list[Outcome] = []
    busy: list[Job] = []
    counts = [num_rows(job.partition.path) for job in jobs]
    total = sum(count for count in counts if count is not None) if None not in counts else None
    by_name = {job.partition.name: job for job in jobs}
    with RowProgress([job.partition for job in jobs], total, tell, progress) as watched:

        def keep(outcome: Outcome) -> None:
            watched.finish(outcome.name, outcome.rows, outcome.is_new)
            outcomes.append(outcome)
            tell_once([f"{outcome.name}: {sentence}" for sentence in outcome.told], told, tell)

        for outcome in _outcomes(jobs, workers):
            if outcome.is_busy:
                busy.append(by_name[outcome.name])
            else:
                keep(outcome)
        if busy:
            tell(f"Waiting for {len(busy)} files that another process is scoring.")
        for outcome in _outcomes([replace(job, waits=True) for job in busy], workers):
            keep(outcome)
    return outcomes


def _outcomes(jobs: Sequence[Job], workers: Workers) -> Iterator[Outcome]:
    """What became of each job, as they finish; a single worker is this process."""
    if workers.jobs == 1 and workers.is_local:
        yield from map(score_partition, jobs)
        return
    for job, found in workers.each_finished(score_partition, jobs):
        if isinstance(found, FSVIError):  # the process was killed, and could not tidy up
            _forget_progress(job.partition)
            found = Outcome(job.partition.path, job.partition.name, error=f"{job.partition.path}: {found}")
        yield found


def _made_by(source: ModelFile, scorer: Scorer, keep: Sequence[str], referral: Referral | None) -> dict[str, Any]:
    """What the predictions depend on besides the input; how rows are cut into batches is not among it."""
    return {
        "format": _FORMAT,
        "model": _hash(source.path),
        "net": source.net,
        "samples": scorer.sampling.samples,
        "seed": scorer.sampling.seed,
        "keep": list(keep),
        "referral": None if referral is None else referral.to_dict(),
    }


def _finished(job: Job) -> dict[str, Any] | None:
    """The receipt of predictions that are there; those of an input that has changed since are removed."""
    receipt = job.partition.receipt()
    if receipt is not None and not _belongs(job, receipt):
        job.partition.output.unlink(missing_ok=True)
        return None
    return receipt


def _belongs(job: Job, receipt: Mapping[str, Any]) -> bool:
    """Whether predictions are those of this input; predictions of another model or with other settings are refused."""
    for name, value in job.by.items():
        if receipt["by"].get(name) != value:
            what = "another model" if name == "model" else f"{name}={receipt['by'].get(name)!r}, not {value!r}"
            raise InvalidInputError(
                f"{job.partition.output} was scored with {what}: choose another folder, or remove that one."
            )
    return bool(receipt["input"] == job.partition.source())


def _score(job: Job) -> Outcome:
    partition, scorer = job.partition, _loaded(job.model, job.by["model"])
    scorer.referral = job.referral
    source, rows = partition.source(), 0
    told: list[str] = []
    seen: set[str] = set()
    partition.output.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(partition.output)
    partition.receipt_path.parent.mkdir(parents=True, exist_ok=True)

    def sign(size: int) -> None:
        if partition.source() != source:
            raise InvalidInputError(f"{partition.path} was changed while it was scored: start again.")
        partition.write_receipt({"by": dict(job.by), "input": source, "rows": rows, "written": size})

    try:
        with new_file(partition.output, before=sign) as writer, building_from(partition.path):
            for part in scorer.parts(partition.path, job.keep):
                if part.columns:
                    writer.write(part.columns)
                rows += part.rows
                partition.progress_path.write_text(str(rows))
                tell_once(part.told, seen, told.append)
    finally:
        _forget_progress(partition)
    return Outcome(partition.path, partition.name, rows, is_new=True, told=told)


def _forget_progress(partition: Partition) -> None:
    with suppress(OSError):
        partition.progress_path.unlink()


@lru_cache(maxsize=1)
def _loaded(model: ModelFile, expected: str) -> Scorer:
    """The model, loaded once per process."""
    if _hash(model.path) != expected:
        raise InvalidInputError(f"{model.path} was changed while files were scored: start again.")
    return model.load()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
