"""Packed files, read into memory: gzip files, and members of zip and tar archives.

Nothing is extracted to disk, so no member's name can lead outside a folder.
"""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath

from fsvi.errors import FileFormatError
from fsvi.validation import first_line


def read_content(path: Path) -> bytes:
    """The bytes of a file, unpacked if its content is gzip."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(
            f"{path} cannot be read ({first_line(error)}): it is damaged, so delete it and download it again."
        ) from error


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The bytes of the wanted members of an archive or unpacked folder, by their names without folders.

    Args:
        path: The archive or folder.
        wanted: The names of the members, without folders.
    """
    members = {_last(name): content for name, content in walk(path, lambda name: _last(name) in wanted)}
    missing = sorted(set(wanted) - set(members))
    if missing:
        raise FileFormatError(f"{path} does not have {', '.join(missing)}: it is incomplete, so download it again.")
    return members


def walk(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each wanted regular file in an archive or folder, in the order of storage."""
    try:
        if path.is_dir():
            yield from _walk_folder(path, wanted)
        elif zipfile.is_zipfile(path):
            yield from _walk_zip(path, wanted)
        else:
            yield from _walk_tar(path, wanted)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise FileFormatError(
            f"{path} cannot be read ({first_line(error)}): it is damaged, so delete it and download it again."
        ) from error


def _walk_folder(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and wanted(name):
            yield name, file.read_bytes()


def _walk_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and wanted(member.filename):
                yield member.filename, archive.read(member)


def _walk_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            # Links are skipped, because they can point anywhere.
            content = archive.extractfile(member) if member.isreg() and wanted(member.name) else None
            if content is not None:
                yield member.name, content.read()


def _last(name: str) -> str:
    return PurePosixPath(name).name
