"""Where what is being made lives until it is done, and the lock that keeps other processes from making it too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fsvi.errors import FSVIError
from fsvi.serialization import check_writable


def unfinished(out: Path, path: Path) -> Path:
    """The folder for what belongs to an unfinished file `path` somewhere in the folder `out`."""
    return out / ".unfinished" / path.relative_to(out).with_suffix("")


@contextmanager
def alone(out: Path, path: Path) -> Iterator[None]:
    """Hold a lock on making `path` that ends with the process, however it ends."""
    folder = unfinished(out, path)
    lock = FileLock(check_writable(folder.parent) / f"{folder.name}.lock")
    try:
        with lock.acquire(timeout=0):
            yield
    except Timeout as error:
        raise FSVIError(f"{path} is being made by another process: wait for it, or choose another --out.") from error
