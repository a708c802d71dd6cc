"""Result files are read whole or refused with their name."""

import json
from dataclasses import replace

import pytest

from fsvi.errors import FileFormatError
from made_results import make_result
from paper.experiment import Order
from paper.records import read_result, read_results, result_path, write_result


@pytest.fixture
def result():
    return make_result("fsvi", "kmnist", 3, task="t", profile="quick")


def test_rows_and_files_are_named_by_method_and_context(tmp_path, result):
    assert result.label == "fsvi (kmnist)"
    assert replace(result, context=None).label == "fsvi"
    order = Order("fashion-mnist", "ensemble:fsvi", "quick", 2, "kmnist")
    assert result_path(tmp_path, order) == tmp_path / "fashion-mnist" / "ensemble-fsvi-kmnist.quick.2.json"


def test_unfinished_runs_are_no_results(tmp_path, result):
    write_result(tmp_path / ".unfinished" / "a.json", result)
    assert list(read_results(tmp_path)) == []


def test_a_damaged_result_is_refused(tmp_path, result):
    path = tmp_path / "a.json"
    write_result(path, result)
    assert read_result(path) == result
    content = path.read_text()
    unsigned = json.dumps({name: value for name, value in json.loads(content).items() if name != "sha256"})
    changed = content.replace('"seed": 3', '"seed": 1')
    for text, said in ((content[:-20], "truncated"), (changed, "checksum"), (unsigned, "not a result"), ("[]", "not")):
        path.write_text(text)
        with pytest.raises(FileFormatError, match=rf"a\.json.*{said}"):
            read_result(path)
