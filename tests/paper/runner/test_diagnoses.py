import json
from dataclasses import replace

import pytest

from fsvi.errors import FileFormatError, InvalidInputError
from paper.experiment import Order
from paper.records import model_path, read_result, result_path, write_document, write_result
from paper.runner.diagnoses import diagnose_result, diagnosis_path, read_diagnosis
from paper.runner.runs import run


@pytest.fixture
def path(tmp_path):
    order = Order("two-moons", "fsvi", "smoke")
    run(order, tmp_path, lambda _: None, progress=False)
    return result_path(tmp_path, order)


def test_a_run_that_learned_nothing_is_named(path):
    """Five epochs are none: the smoke profile only shows that everything works."""
    diagnosis = diagnose_result(path)
    assert diagnosis.verdict == "no" and json.loads(diagnosis.to_json())


def test_a_model_that_is_gone_is_one_sentence(path):
    model_path(path.parent.parent, path).unlink()
    with pytest.raises(InvalidInputError, match="model"):
        diagnose_result(path)


def test_a_result_of_no_known_task_is_named(path):
    write_result(path, replace(read_result(path), task="nowhere"))
    with pytest.raises(InvalidInputError, match="task='nowhere'"):
        diagnose_result(path)


def test_the_diagnosis_is_kept_beside_the_result(path):
    kept = diagnosis_path(path)
    assert kept.name == "fsvi.smoke.0.diagnosis.json"
    made_by_the_run = read_diagnosis(kept)
    kept.unlink()
    again = diagnose_result(path)
    assert read_diagnosis(kept) == again
    assert [finding.name for finding in made_by_the_run] == [finding.name for finding in again]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text.replace('"no"', '"ok"'), "checksum"),
        (lambda text: text[:50], "JSON"),
        (lambda text: "{}", "diagnosis"),
    ],
)
def test_a_spoiled_diagnosis_is_named(path, spoil, said):
    kept = diagnosis_path(path)
    kept.write_text(spoil(kept.read_text()))
    with pytest.raises(FileFormatError, match=said):
        read_diagnosis(kept)


def test_findings_that_no_diagnosis_has_are_refused(tmp_path):
    for document, said in (
        ({"findings": [{"name": "a", "severity": "awful", "sentence": "b"}]}, "unknown level"),
        ({"findings": [{"title": "a"}]}, "diagnosis"),
        ({"summary": "a"}, "diagnosis"),
        ({"findings": [{"name": 3, "severity": "ok", "sentence": "b"}]}, "finding"),
        ({"findings": [{"name": "", "severity": "ok", "sentence": "b"}]}, "finding"),
        ({"findings": [{"name": "a", "severity": "ok", "sentence": None}]}, "finding"),
        ({"findings": [{"name": "a", "severity": "ok", "sentence": "b", "advice": 3}]}, "finding"),
        ({"findings": [{"name": "a", "severity": "ok", "sentence": "b", "values": 3}]}, "finding"),
    ):
        write_document(tmp_path / "a.json", document)
        with pytest.raises(FileFormatError, match=said):
            read_diagnosis(tmp_path / "a.json")
