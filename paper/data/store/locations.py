"""Where data files are: the caller's folder, those of $FSVI_DATA, the cache, then installed Python packages."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from paper.data.dataset import Split
from paper.data.store.files import Entry, File, Source


def folders(root: Path | str | None = None) -> list[Path]:
    """The folders to search, in order; $FSVI_DATA can name several, separated like $PATH."""
    return [folder for group in _groups(root) for folder in group]


def cache() -> Path:
    """The folder for downloads: $XDG_CACHE_HOME/fsvi, or the system's cache folder."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "fsvi"
    import pooch

    return Path(pooch.os_cache("fsvi"))


def find(entry: Entry, split: Split, root: Path | str | None = None) -> tuple[Source, list[Path]] | None:
    """The first source of a split with all files in one folder, and their paths; None if there is none.

    Files of installed Python packages come last.

    Args:
        entry: The dataset.
        split: The split.
        root: The folder to search; None searches the usual ones.
    """
    for searched in _groups(root):
        for source in entry.splits[split]:
            if paths := _paths(source, searched):
                return source, paths
    return next(((source, paths) for source in entry.splits[split] if (paths := _installed(source))), None)


def _groups(root: Path | str | None) -> list[list[Path]]:
    """Groups of folders by priority: any source in the caller's folder wins over a better one elsewhere."""
    named = [Path(part).expanduser() for part in os.environ.get("FSVI_DATA", "").split(os.pathsep) if part]
    return [[Path(root)] if root is not None else [], [*named, cache()]]


def _paths(source: Source, searched: Sequence[Path]) -> list[Path] | None:
    for folder in searched:
        paths = [path for file in source.files if (path := _locate(folder, file))]
        if len(paths) == len(source.files):
            return paths
    return None


def _installed(source: Source) -> list[Path] | None:
    """The paths of a source's files in installed Python packages; the packages are not imported."""
    paths = [path for file in source.files if (path := _locate_installed(file))]
    return paths if paths and len(paths) == len(source.files) else None


def _locate_installed(file: File) -> Path | None:
    module, _, rest = file.installed.partition("/")
    found = find_spec(module) if module else None
    folders = (found.submodule_search_locations if found else None) or ()
    return next((path for folder in folders if (path := Path(folder) / rest).exists()), None)


def _locate(folder: Path, file: File) -> Path | None:
    """The file in `folder`, under its name or without .gz."""
    candidates = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)
