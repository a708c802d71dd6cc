"""Folders for unfinished work, and locks that keep two processes from making the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fsvi.errors import FSVIError
from fsvi.serialization import check_writable


def unfinished(out: Path, path: Path) -> Path:
    """The folder for intermediate files of an unfinished result.

    Args:
        out: The folder of results.
        path: The path that the result will have.
    """
    return out / ".unfinished" / path.relative_to(out).with_suffix("")


@contextmanager
def alone(out: Path, path: Path) -> Iterator[None]:
    """Hold a lock on making a file. It is released when the process ends, even if it is killed.

    Args:
        out: The folder of results.
        path: The file.
    """
    folder = unfinished(out, path)
    lock = FileLock(check_writable(folder.parent) / f"{folder.name}.lock")
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout as error:
        raise FSVIError(f"{path} is being made by another process: wait for it, or choose another --out.") from error
