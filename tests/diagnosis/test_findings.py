import json

import fsvi
from fsvi.diagnosis import diagnose
from moons import MOONS


def test_text_and_json(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.log_std.data.fill_(-15.0)
    diagnosis = diagnose(spoiled, MOONS)
    summary, first, *others = str(diagnosis).splitlines()
    assert summary.startswith("1 fault, ")
    assert first.startswith("fault    variance: ")
    assert len(others) == len(diagnosis.findings) - 1
    found = json.loads(diagnosis.to_json())
    assert found["summary"] == summary
    assert {"name", "severity", "sentence", "advice", "values"} == found["findings"][0].keys()
