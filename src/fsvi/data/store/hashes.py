"""Whether a file is the one that was published: hashes of contents, so that a file packed anew still passes."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast

from fsvi.data.store.files import File, Source
from fsvi.errors import FileFormatError

Verdict = Literal["ok", "differs", "unverified", "wrong"]
_CHUNK = 1 << 20


def check_file(path: Path, file: File) -> Verdict:
    """Whether a file's content has the hash known for it.

    Returns:
        "ok" or "wrong"; "differs" for another content of a file that users make themselves; "unverified" where no hash
        is known or none applies.
    """
    if path.is_dir() or file.digest is None:
        return "unverified"
    algorithm, _, expected = file.digest.partition(":")
    if algorithm == "md5":
        return _check_published(path, file, expected)
    if _content_digest(path) == expected:
        return "ok"
    return "differs" if file.holds else "wrong"


def wrong_files(source: Source, paths: Sequence[Path]) -> list[Path]:
    """Those of a source's files that are not the published ones."""
    return [path for path, verdict in zip(paths, _verdicts(source, paths), strict=True) if verdict == "wrong"]


def refusal(path: Path) -> FileFormatError:
    """The error that says that a file is not the published one."""
    return FileFormatError(f"{path} is not the published file (its hash differs): replace it, or delete it.")


def note_of(source: Source, paths: Sequence[Path]) -> str:
    """The phrase to print beside figures from a source's files; a file that is not the published one is refused."""
    if wrong := wrong_files(source, paths):
        raise refusal(wrong[0])
    differs = "not the published file: its hash differs" if "differs" in _verdicts(source, paths) else ""
    return "; ".join(filter(None, (source.note, differs)))


def _verdicts(source: Source, paths: Sequence[Path]) -> list[Verdict]:
    return [_verdict(path, file) for path, file in zip(paths, source.files, strict=True)]


def _verdict(path: Path, file: File) -> Verdict:
    stat = path.stat()
    try:
        return _remembered(path, stat.st_size, stat.st_mtime_ns, file)
    except OSError:  # what cannot be opened is for its reader to complain of
        return "unverified"


@lru_cache
def _remembered(path: Path, size: int, modified: int, file: File) -> Verdict:
    """The verdict on a file, for as long as neither its size nor its time of change is another."""
    return check_file(path, file)


def _check_published(path: Path, file: File, expected: str) -> Verdict:
    """An MD5 is of the published file, so it says nothing of one that was unpacked."""
    with path.open("rb") as content:
        found = _digest(content, "md5")
    if found == expected:
        return "ok"
    published = PurePosixPath(file.name)
    return "unverified" if published.suffix == ".gz" and path.name == published.stem else "wrong"


def _content_digest(path: Path) -> str | None:
    with path.open("rb") as content:
        packed = content.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as content:
            return _digest(cast("IO[bytes]", content), "sha256")
    except (OSError, EOFError, zlib.error):
        return None


def _digest(content: IO[bytes], algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
