"""Whether a file is the one that was published: hashes of contents, so that a file packed anew still passes."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import IO, Literal, cast

from fsvi.data.sources import File

Verdict = Literal["ok", "unverified", "wrong"]
_CHUNK = 1 << 20


def check_file(path: Path, file: File) -> Verdict:
    """Whether a file's content has the hash known for it; "unverified" where none is known or none applies."""
    if path.is_dir() or file.digest is None:
        return "unverified"
    algorithm, _, expected = file.digest.partition(":")
    if algorithm == "md5":
        return _check_published(path, file, expected)
    return "ok" if _content_digest(path) == expected else "wrong"


def _check_published(path: Path, file: File, expected: str) -> Verdict:
    """An MD5 is of the published file, so it says nothing of one that was unpacked or packed anew."""
    with path.open("rb") as content:
        found = _digest(content, "md5")
    if found == expected:
        return "ok"
    return "unverified" if file.name.endswith("-ubyte.gz") and not path.name.endswith(".gz") else "wrong"


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
