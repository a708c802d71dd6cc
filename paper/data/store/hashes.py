"""Checksums of data files. They cover the unpacked content, so a file that was packed again still passes."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Literal

from fsvi.errors import FileFormatError
from paper.data.store.files import File, Source

Verdict = Literal["ok", "differs", "unverified", "wrong"]
_CHUNK = 1 << 20


def check_file(path: Path, file: File) -> Verdict:
    """Compare a file with its known hash.

    Returns:
        "ok" or "wrong"; "differs" if users make the file themselves and its content is not the known one; "unverified"
        if no hash is known or none applies.

    Args:
        path: The file on this machine.
        file: The file in the catalog.
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
    """The files of a source that are not the published ones.

    Args:
        source: The source in the catalog.
        paths: Its files on this machine.
    """
    return [path for path, verdict in zip(paths, _verdicts(source, paths), strict=True) if verdict == "wrong"]


def refusal(path: Path) -> FileFormatError:
    """The error for a file that is not the published one."""
    return FileFormatError(f"{path} is not the published file (its hash differs): replace it, or delete it.")


def note_of(source: Source, paths: Sequence[Path]) -> str:
    """The phrase to print next to results from these files; files that are not the published ones are refused.

    Args:
        source: The source in the catalog.
        paths: Its files on this machine.
    """
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
    except OSError:  # its reader will report that it cannot be opened
        return "unverified"


@lru_cache
def _remembered(path: Path, size: int, modified: int, file: File) -> Verdict:
    """The verdict on a file, remembered while its size and modification time stay the same."""
    return check_file(path, file)


def _check_published(path: Path, file: File, expected: str) -> Verdict:
    """Compare the MD5 of a file as published; it does not apply to an unpacked copy."""
    import pooch

    if pooch.file_hash(str(path), alg="md5") == expected:
        return "ok"
    published = PurePosixPath(file.name)
    return "unverified" if published.suffix == ".gz" and path.name == published.stem else "wrong"


def _content_digest(path: Path) -> str | None:
    """SHA-256 of a file's content, unpacked if it is gzip; None if it cannot be unpacked."""
    import pooch

    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        return str(pooch.file_hash(str(path), alg="sha256"))
    digest = hashlib.sha256()
    try:
        with gzip.open(path) as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error):
        return None
    return digest.hexdigest()
