"""From a dataset's name to its tensors: found in a local folder or the cache, else downloaded."""

from pathlib import Path

from fsvi.data.catalogue import ENTRIES, Entry, Source
from fsvi.data.dataset import Dataset, Split, build
from fsvi.data.places import find, folders
from fsvi.errors import InvalidInputError
from fsvi.validation import check_choice


def names() -> list[str]:
    """The names that `load` knows."""
    return list(ENTRIES)


def available(name: str, split: Split = "train", root: Path | str | None = None) -> bool:
    """Whether a split can be loaded from a local folder or the cache, without a download."""
    entry = ENTRIES[check_choice("name", name, ENTRIES)]
    return split in entry.splits and _found(entry, split, root) is not None


def load(name: str, split: Split = "train", root: Path | str | None = None) -> Dataset:
    """One split of a dataset, in memory; see `names` for what there is.

    The folder `root`/NAME is searched first, then that of each folder in $FSVI_DATA, then the cache; what is in none of
    them is downloaded into the cache.

    Args:
        name: The dataset's name.
        split: "train" or "test"; "validation" where the publisher made one.
        root: A folder that holds a folder for each dataset.

    Returns:
        The split as stored: images uint8, tables float64. See `Normalize` for what a network should see.
    """
    entry = ENTRIES[check_choice("name", name, ENTRIES)]
    if split not in entry.splits:
        has = ", ".join(map(repr, entry.splits))
        raise InvalidInputError(f"{name} has no split {split!r}, only {has}.")
    found = _found(entry, split, root)
    if found is None:
        raise InvalidInputError(f"{name} {split} was not found.")
    source, paths = found
    return build(name, split, source.read(paths), source.note)


def _found(entry: Entry, split: Split, root: Path | str | None) -> tuple[Source, list[Path]] | None:
    searched = folders(root)
    for source in entry.splits[split]:
        if paths := find(entry, source, searched):
            return source, paths
    return None
