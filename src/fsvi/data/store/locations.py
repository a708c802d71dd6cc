"""Where data files lie: the folder the caller names, the folders of $FSVI_DATA, then the cache."""

import os
from collections.abc import Sequence
from pathlib import Path

from fsvi.data.dataset import Split
from fsvi.data.store.files import Entry, File, Source


def folders(root: Path | str | None = None) -> list[Path]:
    """The folders to search, in order; $FSVI_DATA may hold several, separated as in $PATH."""
    return [folder for group in _groups(root) for folder in group]


def cache() -> Path:
    """The folder that downloads go to: fsvi below $XDG_CACHE_HOME, or the system's folder for caches."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "fsvi"
    import pooch

    return Path(pooch.os_cache("fsvi"))


def find(entry: Entry, split: Split, root: Path | str | None = None) -> tuple[Source, list[Path]] | None:
    """The first source of a split whose files are all in one folder, with their paths; None if there is none."""
    for searched in _groups(root):
        for source in entry.splits[split]:
            if paths := _paths(source, searched):
                return source, paths
    return None


def _groups(root: Path | str | None) -> list[list[Path]]:
    """Folders of equal rank: any source in the caller's own folder goes before a better one elsewhere."""
    named = [Path(part).expanduser() for part in os.environ.get("FSVI_DATA", "").split(os.pathsep) if part]
    return [[Path(root)] if root is not None else [], [*named, cache()]]


def _paths(source: Source, searched: Sequence[Path]) -> list[Path] | None:
    for folder in searched:
        paths = [path for file in source.files if (path := _locate(folder, file))]
        if len(paths) == len(source.files):
            return paths
    return None


def _locate(folder: Path, file: File) -> Path | None:
    """The file below `folder`, as named or without its .gz."""
    candidates = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)
