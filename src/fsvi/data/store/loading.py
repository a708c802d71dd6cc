"""From a dataset's name to its tensors: found in a local folder or the cache, else downloaded."""

from pathlib import Path

from fsvi.data.dataset import Dataset, Split, build
from fsvi.data.store.catalogue import entry_of
from fsvi.data.store.download import download
from fsvi.data.store.files import Entry, Source
from fsvi.data.store.hashes import note_of
from fsvi.data.store.locations import find
from fsvi.errors import InvalidInputError


def available(name: str, split: Split = "train", root: Path | str | None = None) -> bool:
    """Whether a split can be loaded from a local folder or the cache, without a download."""
    entry = entry_of(name)
    return split in entry.splits and find(entry, split, root) is not None


def load(name: str, split: Split = "train", root: Path | str | None = None) -> Dataset:
    """One split of a dataset, in memory; see `names` for what there is.

    The folder `root` is searched first, then each folder in $FSVI_DATA, then the cache; what is in none of them is
    downloaded into the cache. A file whose hash is not the published one's is refused.

    Args:
        name: The dataset's name; `cifar10-c/KIND/SEVERITY` is one corruption of CIFAR-10-C.
        split: "train" or "test"; "validation" where the publisher made one. Tables have only "train", all of their
            rows.
        root: A folder that holds a folder for each dataset.

    Returns:
        The split as stored: images uint8, tables float64. `Normalize` makes of images what a network should see.
    """
    entry, source, paths = _located(name, split, root)
    note = note_of(source, paths)
    return build(name, split, source.read(paths), note, entry.graded)


def ensure(name: str, split: Split = "train") -> None:
    """See to it that a split is here, downloaded if need be, and has the published hashes, without reading it."""
    _, source, paths = _located(name, split)
    note_of(source, paths)


def _located(name: str, split: Split, root: Path | str | None = None) -> tuple[Entry, Source, list[Path]]:
    entry = entry_of(name)
    if split not in entry.splits:
        has = " and ".join(map(repr, entry.splits))
        raise InvalidInputError(f"{name} has no split {split!r}, only {has}: hold some of it out with splits().")
    return entry, *(find(entry, split, root) or download(entry, split))
