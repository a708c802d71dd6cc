import pickle

import pytest

from reliability.mutations import Payload, damage


@pytest.mark.filterwarnings("ignore")  # of the readers of damaged files
@pytest.mark.parametrize("tables", [False, True])
def test_damaged_files_are_refused_in_one_sentence_or_read(tmp_path, monkeypatch, tables):
    monkeypatch.chdir(tmp_path)
    counts, failures = damage(tmp_path, 54, tables)
    assert failures == [] and counts["refused"] > 10


def test_the_pickles_that_are_planted_would_leave_a_mark(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()
