from pathlib import Path

import pytest

from fsvi.errors import InvalidInputError
from fsvi.scoring.files import find_files


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n1\n")
    return folder


def names(*inputs, out):
    return list(find_files(inputs, Path(out)))


def test_patterns_and_folders_are_found_once_in_order(tmp_path):
    data = make(tmp_path / "data", "2024/b.csv", "2024/a.parquet", "2025/a.parquet", "_SUCCESS", ".x.csv", "notes.md")
    out = tmp_path / "out"
    assert names(data, out=out) == ["2024/a.parquet", "2024/b.csv", "2025/a.parquet"]
    assert names(data / "*/a.parquet", data / "2024/a.parquet", out=out) == ["2024/a.parquet", "2025/a.parquet"]
    assert names(data / "2024/b.csv", out=out) == ["b.csv"]


def test_predictions_among_the_inputs_are_not_inputs(tmp_path):
    make(tmp_path, "a.csv", "scored/a.csv")
    assert names(tmp_path, out=tmp_path / "scored") == ["a.csv"]


@pytest.mark.parametrize(
    ("inputs", "keyword"),
    [(["*.parquet"], "matches no file"), (["a.csv", "a.tsv"], "would both become"), (["a.doc"], "'.doc'")],
)
def test_what_cannot_be_scored_is_named(tmp_path, inputs, keyword):
    make(tmp_path, "a.csv", "a.tsv", "a.doc")
    with pytest.raises(InvalidInputError, match=keyword):
        find_files([tmp_path / each for each in inputs], tmp_path / "out")
