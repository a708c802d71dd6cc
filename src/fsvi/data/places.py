"""Where data files lie: the folder the caller names, the folders of $FSVI_DATA, then the cache."""

import os
from collections.abc import Sequence
from pathlib import Path

from fsvi.data.catalogue import Entry, File, Source


def folders(root: Path | str | None = None) -> list[Path]:
    """The folders to search, in order; $FSVI_DATA may hold several, separated as in $PATH."""
    given = [Path(root)] if root is not None else []
    named = [Path(part).expanduser() for part in os.environ.get("FSVI_DATA", "").split(os.pathsep) if part]
    return [*given, *named, cache()]


def cache() -> Path:
    """The folder that downloads go to: fsvi below $XDG_CACHE_HOME, or below ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fsvi"


def find(entry: Entry, source: Source, searched: Sequence[Path]) -> list[Path] | None:
    """The paths of a source's files, all from the first folder that has them all."""
    for folder in searched:
        paths = [path for file in source.files if (path := locate(folder / entry.folder, file))]
        if len(paths) == len(source.files):
            return paths
    return None


def locate(folder: Path, file: File) -> Path | None:
    """The file in `folder`, as named or without its .gz."""
    candidates = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)
