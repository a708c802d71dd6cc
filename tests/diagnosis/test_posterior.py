import pytest
from torch import nn

import fsvi
import scenarios
from fsvi.diagnosis import diagnose
from moons import MOONS, faults


def test_variance_collapsed(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.log_std.data.fill_(-15.0)
    diagnosis = diagnose(spoiled, MOONS)
    assert faults(diagnosis) == {"variance"}
    assert "6 of 6" in diagnosis["variance"].sentence
    assert "init" in diagnosis["variance"].advice


def test_variance_of_one_feature_layer_collapsed_is_a_warning(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.layout.views(spoiled.posterior.log_std.data)["0.bias"].fill_(-15.0)
    finding = diagnose(spoiled, MOONS)["variance"]
    assert (finding.severity, "0.bias" in finding.sentence) == ("warning", True)


def test_variance_blown_up(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.layout.views(spoiled.posterior.log_std.data)["2.weight"].fill_(3.0)
    diagnosis = diagnose(spoiled, MOONS)
    assert "variance" in faults(diagnosis)
    assert "blown up: 2.weight" in diagnosis["variance"].sentence


@pytest.mark.parametrize("tracked", [True, False])
def test_batch_norm_without_statistics(tracked: bool) -> None:
    net = scenarios.normalised()
    if not tracked:
        net[1] = nn.BatchNorm2d(3, track_running_stats=False)
    finding = diagnose(fsvi.MAP(net, fsvi.Categorical()), scenarios.images())["batch_norm"]
    assert finding.severity == "fault"
    assert ("no batch" if tracked else "no statistics") in finding.sentence


def test_batch_norm_with_statistics() -> None:
    method, data = scenarios.build("batch_norm")
    fsvi.fit(method, data, epochs=2, progress=False)
    assert diagnose(method, data)["batch_norm"].severity == "ok"
