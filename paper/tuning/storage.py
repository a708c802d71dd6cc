"""Where studies are kept: a journal file, or a database that Optuna can use. Several processes may share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.serialization import check_writable
from fsvi.validation import first_line

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_SQLITE_PATIENCE = 60.0
"""Seconds that a process waits while another one writes to an SQLite file."""


@dataclass(frozen=True)
class Place:
    """A storage: where it is, and what serializes the processes that share it.

    Args:
        text: A database URL, or the path of a journal file.
        folder: The folder of the study's summary, for locks of storages that are not a local file.
    """

    text: str
    folder: Path

    @property
    def is_url(self) -> bool:
        """Whether it is a database, not a journal file."""
        return "://" in self.text

    @property
    def file(self) -> Path | None:
        """The local file that holds it, if there is one."""
        if not self.is_url:
            return Path(self.text)
        name = self.text.partition(":///")[2] if self.text.startswith("sqlite") else ""
        return Path(name.partition("?")[0]) if name and ":memory:" not in name else None

    @property
    def name(self) -> str:
        """The place without a password."""
        head, separator, rest = self.text.partition("://")
        if not separator or "@" not in rest:
            return self.text
        user, _, address = rest.rpartition("@")
        return f"{head}://{user.partition(':')[0]}@{address}"

    @property
    def lock_folder(self) -> Path:
        """The folder of locks: that of the local file, otherwise that of the summary."""
        return self.folder if self.file is None else self.file.absolute().parent

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One process at a time, of those that see the same locks."""
        file = check_writable(self.lock_folder) / (self.file.name if self.file else "studies")
        with FileLock(_beside(file, "turn")):
            yield

    def open(self) -> BaseStorage:
        """The storage; an error says why it cannot be used."""
        try:
            import optuna
        except ImportError as error:
            raise FSVIError("tuning needs Optuna: pip install 'fsvi[paper]'.") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self.explaining("cannot be used"):
            return _open_database(self.text) if self.is_url else _open_journal(Path(self.text))

    @contextmanager
    def explaining(self, what: str) -> Iterator[None]:
        """Turn errors of the storage into one sentence.

        Args:
            what: What happened to the storage, such as "cannot be used".
        """
        try:
            yield
        except FSVIError:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            if not _is_of_storage(error):
                raise
            reason = first_line(cause).removesuffix(".")
            raise FSVIError(f"the storage {self.name} {what}: {reason}.") from error


def _is_of_storage(error: BaseException) -> bool:
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    storage_errors = ("StorageInternalError", "DuplicatedStudyError")
    return "sqlalchemy" in modules or isinstance(error, ImportError | OSError) or type(error).__name__ in storage_errors


def _open_database(url: str) -> BaseStorage:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalRedisBackend

    if url.startswith("redis"):
        return JournalStorage(JournalRedisBackend(url))
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": _SQLITE_PATIENCE}
    return RDBStorage(url, engine_kwargs=options)


def _open_journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    check_writable(path.parent)
    if path.is_dir():
        raise InvalidInputError(f"the storage {path} is a folder: name a file in it, or a database URL.")
    return JournalStorage(JournalFileBackend(str(path), lock_obj=cast(Any, _JournalLock(path))))


class _JournalLock:
    """A lock that the system releases when a process is killed; Optuna's own locks stay for 30 seconds then.

    It also removes a last line that was not written to its end. Optuna would write the next line after it, and could
    not read the file any more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(_beside(path, "journal"))

    def acquire(self) -> bool:
        self._lock.acquire()
        _remove_torn_line(self._path)
        return True

    def release(self) -> None:
        self._lock.release()


def _remove_torn_line(path: Path) -> None:
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size:
            start = max(0, size - 4096)
            file.seek(start)
            newline = file.read(size - start).rfind(b"\n")
            if newline >= 0:
                size = start + newline + 1
                break
            size = start
        if size < file.seek(0, os.SEEK_END):
            file.truncate(size)


def _beside(path: Path, name: str) -> Path:
    return path.parent / f".{path.name}.{name}.lock"
