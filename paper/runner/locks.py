"""Folders for unfinished work, and locks that keep two processes from making the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fsvi.errors import FSVIError
from fsvi.serialization import check_writable

_PATIENCE, _POLL = 0.1, 0.02
"""Seconds to wait for a lock: longer than `is_being_made` holds it."""


class BeingMadeError(FSVIError):
    """Another process is making the same file."""


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
    lock = lock_path(out, path)
    check_writable(lock.parent)
    try:
        with FileLock(lock).acquire(timeout=_PATIENCE, poll_interval=_POLL):
            yield
    except Timeout as error:
        raise BeingMadeError(
            f"{path} is being made by another process: wait for it, or choose another --out."
        ) from error


def is_being_made(out: Path, path: Path) -> bool:
    """Whether a process holds the lock on making a file.

    Args:
        out: The folder of results.
        path: The file.
    """
    lock = lock_path(out, path)
    if not lock.exists():
        return False
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except Timeout:
        return True


def lock_path(out: Path, path: Path) -> Path:
    """The lock on making a file.

    Args:
        out: The folder of results.
        path: The file.
    """
    folder = unfinished(out, path)
    return folder.parent / f"{folder.name}.lock"
