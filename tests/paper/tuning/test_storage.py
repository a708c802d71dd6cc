"""Storages of studies."""

import json
from pathlib import Path

import pytest

from fsvi.errors import FSVIError, InvalidInputError
from paper.tuning.storage import Place

optuna = pytest.importorskip("optuna", reason="Optuna is an extra: pip install optuna")


@pytest.mark.parametrize(
    ("text", "is_url", "file", "name"),
    [
        ("studies/a.log", False, Path("studies/a.log"), "studies/a.log"),
        ("sqlite:///a/b.db", True, Path("a/b.db"), "sqlite:///a/b.db"),
        ("sqlite:////a/b.db?timeout=9", True, Path("/a/b.db"), "sqlite:////a/b.db?timeout=9"),
        ("sqlite://", True, None, "sqlite://"),
        ("mysql://me:p@ss@host/db", True, None, "mysql://me@host/db"),
    ],
)
def test_what_a_storage_is(tmp_path, text, is_url, file, name):
    place = Place(text, tmp_path)
    assert (place.is_url, place.file, place.name) == (is_url, file, name)
    assert place.lock_folder == (tmp_path if file is None else file.absolute().parent)


@pytest.mark.parametrize("text", ["oracle+nothing://me:secret@host/x", "nonsense://x", "sqlite:///{}", "http:///"])
def test_a_storage_that_cannot_be_reached_is_one_sentence(tmp_path, text):
    """The folder is not a database file. Passwords are not shown."""
    with pytest.raises(FSVIError, match="cannot be used") as caught:
        Place(text.format(tmp_path), tmp_path).open()
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(InvalidInputError, match="is a folder"):
        Place(str(tmp_path), tmp_path).open()


@pytest.mark.parametrize("torn", [b'{"op_code":4', b"x" * 10_000, b""])
def test_a_line_that_was_not_written_to_its_end_is_dropped(tmp_path, torn):
    """A process was killed while it wrote. Optuna's own lock would leave the line, and the file would be lost."""
    path = tmp_path / "a.log"
    place = Place(str(path), tmp_path)
    optuna.create_study(storage=place.open(), study_name="a").enqueue_trial({"x": 1.0})
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    study = optuna.load_study(storage=place.open(), study_name="a")
    study.enqueue_trial({"x": 2.0})
    assert path.read_bytes().startswith(whole + b"{") and all(map(json.loads, path.read_text().splitlines()))
    assert len(optuna.load_study(storage=place.open(), study_name="a").trials) == 2
