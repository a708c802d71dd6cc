"""Methods broken on purpose: the diagnosis must name what is wrong, and find nothing wrong with healthy ones."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.diagnosis import diagnose
from fsvi.diagnosis.methods import _measure
from fsvi.diagnosis.statistics import check_calibration
from fsvi.networks import mlp
from moons import MOONS, faults, moons_method, trained


@pytest.fixture(scope="session")
def healthy() -> fsvi.FSVI:
    return trained(moons_method(), epochs=250)


@pytest.fixture
def spoiled(healthy: fsvi.FSVI) -> Iterator[fsvi.FSVI]:
    """The healthy method, whose deviations a test may change; they are restored afterward."""
    kept = healthy.posterior.log_std.detach().clone()
    yield healthy
    healthy.posterior.log_std.data.copy_(kept)


def test_a_healthy_classifier_is_trusted(healthy: fsvi.FSVI) -> None:
    diagnosis = diagnose(healthy, MOONS)
    assert not faults(diagnosis)
    names = ["learning", "variance", "distance", "samples", "calibration"]
    assert [finding.name for finding in diagnosis] == names
    assert diagnosis["distance"].numbers["far"] > diagnosis["distance"].numbers["near"]


def test_text_and_json(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.log_std.data.fill_(-15.0)
    diagnosis = diagnose(spoiled, MOONS)
    headline, first, *others = str(diagnosis).splitlines()
    assert headline == "Do not rely on this model; see variance." and first.startswith("no    variance: ")
    assert len(others) == len(diagnosis.findings) - 1
    found = json.loads(diagnosis.to_json())
    assert found["verdict"] == "no"
    assert {"name", "level", "sentence", "advice", "numbers"} == found["findings"][0].keys()


@pytest.mark.parametrize("name", ["mfvi", "laplace", "duq", "spg", "vbll", "ensemble:fsvi"])
def test_every_method_can_be_diagnosed(name: str) -> None:
    torch.manual_seed(0)
    settings = {"spg": {"num_prior_steps": 2}, "ensemble:map": {"size": 2}, "ensemble:fsvi": {"size": 2}}.get(name, {})
    method = fsvi.make_method(name, lambda: mlp(2, (6,), 2), fsvi.Categorical(), **settings)
    data = scenarios.points()
    fsvi.fit(method, data, epochs=2, progress=False)
    diagnosis = diagnose(method, data, num_samples=2)
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert "learning" in {finding.name for finding in diagnosis} or faults(diagnosis)


def test_nothing_is_changed_by_a_diagnosis() -> None:
    method = scenarios.image_classifier()
    data = scenarios.images()
    fsvi.fit(method, data, epochs=1, progress=False)
    before, random = scenarios.copied(method), torch.get_rng_state()
    diagnose(method, data)
    assert scenarios.same_bits(before, method.state_dict())
    assert torch.equal(random, torch.get_rng_state())


# Learning and the posterior -------------------------------------------------------------------------------------------


def test_untrained() -> None:
    assert faults(diagnose(moons_method(), MOONS)) == {"learning"}


def test_kl_weight_a_thousand_times_too_large() -> None:
    diagnosis = diagnose(trained(moons_method(kl_weight=1000 / len(MOONS[0]))), MOONS)
    assert diagnosis["learning"].level == "no"
    assert "Lower kl_weight: the KL weighs 1e+03 times" in diagnosis["learning"].advice


def test_variance_blown_up(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.layout.views(spoiled.posterior.log_std.data)["2.weight"].fill_(3.0)
    diagnosis = diagnose(spoiled, MOONS)
    assert "variance" in faults(diagnosis)
    assert "(2.weight) of the weights: they have blown up" in diagnosis["variance"].sentence


# Away from the data ---------------------------------------------------------------------------------------------------


def test_context_inside_the_data() -> None:
    diagnosis = diagnose(trained(moons_method(context=fsvi.contexts.Dataset(MOONS[0]))), MOONS)
    assert "distance" in faults(diagnosis)
    assert "of context points leave the data" in diagnosis["distance"].advice


def test_one_network_is_uncertain_nowhere() -> None:
    diagnosis = diagnose(trained(fsvi.MAP(mlp(2, (30, 30), 2, nn.Tanh), fsvi.Categorical()), epochs=200), MOONS)
    assert {finding.name for finding in diagnosis} == {"learning", "distance", "calibration"}
    assert "distance" in faults(diagnosis)
    assert "use FSVI" in diagnosis["distance"].advice


# Predictions ----------------------------------------------------------------------------------------------------------


def test_the_monte_carlo_error_falls_with_the_root_of_the_draws(healthy: fsvi.FSVI) -> None:
    """The slope of the logarithms is −1/2; an error from five sets of draws is itself uncertain by about a third."""
    nums = [2, 4, 8, 16, 32, 64]
    errors = [diagnose(healthy, MOONS, num_samples=num)["samples"].numbers["error"] for num in nums]
    slope = np.polyfit(np.log(nums), np.log(errors), 1)[0]
    assert -0.75 < slope < -0.25, slope


@pytest.mark.parametrize(
    ("slope", "level", "words"),
    [(50.0, "no", "too sure"), (0.1, "care", "not sure enough"), (0.69, "ok", "Promises are kept")],
)
def test_calibration_tells_the_direction(slope: float, level: str, words: str) -> None:
    """The truth is 0.2 or 0.8, by the sign of x; the right slope is logit(0.8)/2 = 0.69."""
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardtanh(), nn.Linear(1, 2))
    with torch.no_grad():
        net[0].weight.fill_(1e6)
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[-slope], [slope]]))
        net[2].bias.zero_()
    torch.manual_seed(0)
    x = torch.randn(400, 1)
    y = (torch.rand(400) < 0.5 + 0.3 * x[:, 0].sign()).long()
    finding = check_calibration(_measure(fsvi.MAP(net, fsvi.Categorical()).predict(x), y))
    assert (finding.level, words in finding.sentence) == (level, True)
