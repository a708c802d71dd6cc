"""Load a dataset by name from a local folder or the cache, or download it."""

from pathlib import Path

from fsvi.errors import InvalidInputError
from paper.data.dataset import DataSplit, Split, TextSplit, build, build_texts
from paper.data.store.catalog import entry_of
from paper.data.store.download import download
from paper.data.store.files import Entry, Source
from paper.data.store.hashes import note_of
from paper.data.store.locations import find


def available(name: str, split: Split = "train", root: Path | str | None = None) -> bool:
    """Whether a split can be loaded without a download.

    Args:
        name: The dataset's name.
        split: "train", "validation" or "test".
        root: A folder to search first; see `load`.
    """
    entry = entry_of(name)
    return split in entry.splits and find(entry, split, root) is not None


def load(name: str, split: Split = "train", root: Path | str | None = None) -> DataSplit:
    """Load one split of a dataset into memory; `names` lists the datasets.

    The folder `root` is searched first, then each folder in $FSVI_DATA, then the cache. Missing files are downloaded
    into the cache. A file with another hash than the published one is refused.

    Args:
        name: The dataset's name; `cifar10-c/KIND/SEVERITY` is one corruption of CIFAR-10-C.
        split: "train" or "test", or "validation" if the publisher made one. Tables have only "train" with all rows.
        root: A folder that has one folder per dataset.

    Returns:
        The split as stored: images uint8, tables float64. Use `Normalize` to make network inputs from images.
    """
    if entry_of(name).is_text:
        raise InvalidInputError(f"{name} has texts, not numbers: load it with paper.data.load_texts({name!r}).")
    entry, source, paths = _located(name, split, root)
    note = note_of(source, paths)
    return build(name, split, source.read(paths), note, entry.graded)


def load_texts(name: str, split: Split = "train", root: Path | str | None = None) -> TextSplit:
    """Load one split of a dataset of texts into memory; files are searched and checked as by `load`.

    Args:
        name: The dataset's name, such as "imdb".
        split: "train", "validation" or "test".
        root: A folder that has one folder per dataset.

    Returns:
        Texts and labels. `Vocabulary` turns the texts into numbers.
    """
    if not entry_of(name).is_text:
        raise InvalidInputError(f"{name} has no texts: load it with paper.data.load({name!r}).")
    _, source, paths = _located(name, split, root)
    return build_texts(name, split, source.read(paths), note_of(source, paths))


def ensure(name: str, split: Split = "train") -> None:
    """Download a split if it is missing and check its hashes, without reading it.

    Args:
        name: The dataset's name.
        split: "train", "validation" or "test".
    """
    _, source, paths = _located(name, split)
    note_of(source, paths)


def _located(name: str, split: Split, root: Path | str | None = None) -> tuple[Entry, Source, list[Path]]:
    entry = entry_of(name)
    if split not in entry.splits:
        has = " and ".join(map(repr, entry.splits))
        raise InvalidInputError(f"{name} has no split {split!r}, only {has}: hold out a part of it with splits().")
    return entry, *(find(entry, split, root) or download(entry, split))
