"""Result files are read whole or refused with their name."""

import json
from dataclasses import replace

import pytest

from fsvi.errors import FileFormatError
from made_results import make_result
from paper.experiment import Order
from paper.records import checksum, read_result, read_results, result_path, write_result


@pytest.fixture
def result():
    return make_result("fsvi", "kmnist", 3, task="t", profile="quick")


def summed(text, **changes):
    """The file with changes and a checksum that fits them."""
    document = {name: value for name, value in {**json.loads(text), **changes}.items() if name != "sha256"}
    return json.dumps({**document, "sha256": checksum(document)})


def test_rows_and_files_are_named_by_method_and_context(tmp_path, result):
    assert result.label == "fsvi (kmnist)"
    assert replace(result, context=None).label == "fsvi"
    order = Order("fashion-mnist", "ensemble:fsvi", "quick", 2, "kmnist")
    assert result_path(tmp_path, order) == tmp_path / "fashion-mnist" / "ensemble-fsvi-kmnist.quick.2.json"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[: len(text) // 2], "JSON"),
        (lambda text: "", "JSON"),
        (lambda text: "[1, 2]", "not a result"),
        (lambda text: text.replace('"seed": 3', '"seed": 4'), "checksum"),
        (lambda text: text.replace("0.92", "0.93"), "checksum"),
        (lambda text: "[" * 100_000, "JSON"),
        (lambda text: summed(text, format=9), "not a result"),
        (lambda text: summed(text, more=1), "not a result"),
        (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "sha256"}), "not a result"),
        (lambda text: summed(text, metrics={"accuracy": "high"}), "'metrics'"),
        (lambda text: summed(text, metrics={"accuracy": 10**400}), "'metrics'"),
        (lambda text: summed(text, profile="best"), "'profile'"),
        (lambda text: summed(text, seconds={}), "'seconds'"),
    ],
)
def test_a_spoiled_file_is_named_and_others_are_read(tmp_path, result, spoil, said):
    good, bad = tmp_path / "t" / "a.json", tmp_path / "t" / "b.json"
    write_result(good, result)
    bad.write_text(spoil(good.read_text()))
    with pytest.raises(FileFormatError, match=said):
        read_result(bad)
    found = dict(read_results(tmp_path))
    assert found[good] == result and isinstance(found[bad], FileFormatError)


def test_unfinished_runs_are_no_results(tmp_path, result):
    write_result(tmp_path / ".unfinished" / "a.json", result)
    assert list(read_results(tmp_path)) == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_result_without_a_checksum_is_refused(tmp_path, result, number):
    path = tmp_path / "a.json"
    write_result(path, result)
    document = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    path.write_text(json.dumps({**document, "format": number}))
    with pytest.raises(FileFormatError, match=r"a\.json"):
        read_result(path)
