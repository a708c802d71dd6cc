"""Two processes cannot make the same file."""

import pytest

from fsvi.errors import FSVIError
from fsvi.experiments.runner.locks import alone, unfinished


def test_the_second_is_refused_until_the_first_is_done(tmp_path):
    path = tmp_path / "task" / "a.json"
    with alone(tmp_path, path), pytest.raises(FSVIError, match="another process"), alone(tmp_path, path):
        pass
    with alone(tmp_path, path):
        pass
    with alone(tmp_path, tmp_path / "task" / "b.json"), alone(tmp_path, path):
        pass


def test_unfinished_work_is_hidden(tmp_path):
    assert unfinished(tmp_path, tmp_path / "task" / "a.json") == tmp_path / ".unfinished" / "task" / "a"
