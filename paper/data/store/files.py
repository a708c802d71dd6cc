"""The description of a dataset's files: names, official addresses, hashes, and readers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paper.data.dataset import Arrays, Split


@dataclass(frozen=True)
class File:
    """One file of a dataset.

    Attributes:
        name: Its path inside a data folder.
        url: Its official address; None if it cannot be downloaded.
        digest: "sha256:..." of its content (for .gz, of the unpacked content), or "md5:..." of the file as published if
            only that is known; None if no hash is known.
        holds: The required content, if users must make the file themselves from published data.
        package: The Python package that has the file, if there is one: its name for pip.
        installed: The file's path inside an installed copy of that package.
    """

    name: str
    url: str | None = None
    digest: str | None = None
    holds: str = ""
    package: str = ""
    installed: str = ""


@dataclass(frozen=True)
class Source:
    """One set of files that a split can be read from.

    Attributes:
        files: The files, in the order that the reader expects.
        read: A function from their paths to inputs and targets.
        note: A phrase to print next to results.
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
    """One dataset in the catalog.

    Attributes:
        name: Its name.
        description: A short description.
        license: Its license.
        page: The publisher's page.
        splits: The sources of each split. The first source found is read; the first downloadable one is downloaded.
        graded: Whether targets are grades 0..4, with 2 or worse as the positive class.
        is_text: Whether inputs are texts, which `load_texts` loads.
    """

    name: str
    description: str
    license: str
    page: str
    splits: Mapping[Split, tuple[Source, ...]]
    graded: bool = False
    is_text: bool = False

    def plain(self, split: Split) -> tuple[Source, ...]:
        """The sources of a split without a note. If there are any, the others are substitutes for them."""
        return tuple(source for source in self.splits[split] if not source.note)
