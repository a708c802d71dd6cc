"""Two processes cannot make the same file."""

import pytest

from paper.runner.locks import BeingMadeError, alone, is_being_made, unfinished


def test_the_second_is_refused_until_the_first_is_done(tmp_path):
    path = tmp_path / "task" / "a.json"
    with alone(tmp_path, path), pytest.raises(BeingMadeError, match="another process"), alone(tmp_path, path):
        pass
    with alone(tmp_path, path):
        pass
    with alone(tmp_path, tmp_path / "task" / "b.json"), alone(tmp_path, path):
        pass


def test_whether_a_file_is_being_made(tmp_path):
    path = tmp_path / "task" / "a.json"
    assert not is_being_made(tmp_path, path) and not list(tmp_path.iterdir()), "looking writes nothing"
    with alone(tmp_path, path):
        assert is_being_made(tmp_path, path)
    assert not is_being_made(tmp_path, path)


def test_unfinished_work_is_hidden(tmp_path):
    assert unfinished(tmp_path, tmp_path / "task" / "a.json") == tmp_path / ".unfinished" / "task" / "a"
