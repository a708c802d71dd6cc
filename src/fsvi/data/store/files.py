"""What is known of a dataset's files: names, official addresses, hashes, and who reads them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsvi.data.dataset import Arrays, Split


@dataclass(frozen=True)
class File:
    """One file of a dataset.

    Attributes:
        name: Its path below a data folder.
        url: Its official address; None when it cannot be downloaded on its own.
        digest: "sha256:..." of its content, which for .gz is what it unpacks to; or "md5:..." of the file as published,
            where only that is known; None when nothing is known for certain.
        holds: What it must hold, where nobody publishes it in this form and users make it of what is published.
    """

    name: str
    url: str | None = None
    digest: str | None = None
    holds: str = ""


@dataclass(frozen=True)
class Source:
    """One set of files that a split can be read from.

    Attributes:
        files: The files, in the order the reader wants.
        read: From their paths to inputs and targets.
        note: A phrase to print beside figures.
    """

    files: tuple[File, ...]
    read: Callable[[Sequence[Path]], Arrays]
    note: str = ""

    @property
    def downloadable(self) -> bool:
        """Whether every file has an address."""
        return all(file.url for file in self.files)


@dataclass(frozen=True)
class Entry:
    """One dataset.

    Attributes:
        name: Its name.
        what: What it is, in a phrase.
        licence: Under what licence.
        page: Where its publisher describes it.
        splits: The sources of each split: the first one found is read, the first downloadable one downloaded.
        graded: Whether targets are grades 0..4 of which 2 or worse is the positive class.
    """

    name: str
    what: str
    licence: str
    page: str
    splits: Mapping[Split, tuple[Source, ...]]
    graded: bool = False

    def plain(self, split: Split) -> tuple[Source, ...]:
        """The sources of a split with no note: where there are any, those with one stand in for them."""
        return tuple(source for source in self.splits[split] if not source.note)
