"""Results and diagnoses of a folder."""

from fsvi.diagnosis import Diagnosis, Finding
from made_results import make_result
from paper.report.collection import collect_diagnoses
from paper.runner.diagnoses import diagnosis_path, write_diagnosis

FAULT = Finding("kl_balance", "no", "The KL term is 288.", "Lower kl_weight.")
WELL = Finding("learning", "ok", "It has learned.")


def test_of_diagnoses_that_with_the_most_faults_comes_first(tmp_path):
    warning = Finding("context", "care", "It is near the data.")
    found = {"a": (WELL,), "b": (WELL, FAULT), "c": (warning,), "d": (FAULT, FAULT), "e": (FAULT, warning)}
    results = {tmp_path / f"{name}.json": make_result(name) for name in found}
    for path, result in results.items():
        write_diagnosis(diagnosis_path(path), Diagnosis(found[result.method]))
    diagnoses, _ = collect_diagnoses(results)
    assert [each.result.method for each in diagnoses] == ["d", "e", "b", "c", "a"]


def test_findings_are_counted_and_sorted(tmp_path):
    path = tmp_path / "a.json"
    write_diagnosis(diagnosis_path(path), Diagnosis((WELL, FAULT)))
    ((run,), problems) = collect_diagnoses({path: make_result(), tmp_path / "b.json": make_result("mfvi")})
    assert problems == [] and not run.is_well
    assert [finding.level for finding in run.findings] == ["no", "ok"] and run.count("no") == 1
