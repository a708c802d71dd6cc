"""Models broken on purpose: the diagnosis must name what is wrong, and find no fault with healthy ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.data.toy import snelson, two_moons
from fsvi.diagnosis import Diagnosis, diagnose
from fsvi.diagnosis.evidence import Evidence
from fsvi.diagnosis.predictions import check_calibration
from fsvi.methods.registry import METHODS
from fsvi.networks import mlp

MOONS = two_moons()


def moons_method(**settings: Any) -> fsvi.FSVI:
    torch.manual_seed(0)
    box = fsvi.contexts.Uniform(low=[-10, -10], high=[10, 10])
    return fsvi.FSVI(mlp(2, (30, 30), 2, nn.Tanh), fsvi.Categorical(), **{"context": box, **settings})


def trained(method: fsvi.Method, data: Any = MOONS, epochs: int = 100) -> fsvi.History:
    return fsvi.fit(method, data, epochs=epochs, batch_size=256, progress=False)


def faults(diagnosis: Diagnosis) -> set[str]:
    return {finding.name for finding in diagnosis.faults}


@pytest.fixture(scope="module")
def healthy() -> tuple[fsvi.FSVI, fsvi.History]:
    method = moons_method()
    return method, trained(method, epochs=250)


@pytest.fixture
def spoiled(healthy: tuple[fsvi.FSVI, fsvi.History]):
    """The healthy method, to be spoiled and healed again."""
    method, _ = healthy
    kept = method.posterior.log_std.detach().clone()
    yield method
    method.posterior.log_std.data.copy_(kept)


def test_a_healthy_classifier_has_no_fault(healthy: tuple[fsvi.FSVI, fsvi.History]) -> None:
    method, history = healthy
    diagnosis = diagnose(method, MOONS, history=history)
    assert diagnosis.faults == []
    names = ["learning", "kl_balance", "variance", "context", "distance", "samples", "calibration"]
    assert [finding.name for finding in diagnosis] == names
    assert diagnosis["distance"].values["far"] > diagnosis["distance"].values["near"]


def test_a_healthy_regression_has_no_fault() -> None:
    toy = snelson()
    low, high = toy.features(torch.tensor([[toy.context_range[0]], [toy.context_range[1]]])).tolist()
    torch.manual_seed(0)
    method = fsvi.FSVI(
        mlp(1, (50, 50), 1),
        fsvi.Gaussian(noise=0.3, learn_noise=True),
        fsvi.contexts.Uniform(low=low, high=high),
        fsvi.priors.Constant(10.0),
        num_context=20,
        kl_weight=0.015,
        log_std_lr_scale=10.0,
        linearize="conditional",
    )
    history = trained(method, (toy.x, toy.y), epochs=500)
    diagnosis = diagnose(method, (toy.x, toy.y), history=history)
    assert diagnosis.faults == []
    assert "coverage_90" in diagnosis["calibration"].values


def test_one_prediction_sample(healthy: tuple[fsvi.FSVI, fsvi.History]) -> None:
    diagnosis = diagnose(healthy[0], MOONS, num_samples=1)
    assert faults(diagnosis) == {"samples"}
    assert "num_samples=10" in diagnosis["samples"].advice


def test_variance_collapsed(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.log_std.data.fill_(-15.0)
    diagnosis = diagnose(spoiled, MOONS)
    assert faults(diagnosis) == {"variance"}
    assert "6 of 6" in diagnosis["variance"].sentence
    assert "init_std" in diagnosis["variance"].advice


def test_variance_of_one_feature_layer_collapsed_is_a_warning(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.layout.views(spoiled.posterior.log_std.data)["0.bias"].fill_(-15.0)
    finding = diagnose(spoiled, MOONS)["variance"]
    assert (finding.severity, "0.bias" in finding.sentence) == ("warning", True)


def test_variance_blown_up(spoiled: fsvi.FSVI) -> None:
    spoiled.posterior.layout.views(spoiled.posterior.log_std.data)["2.weight"].fill_(3.0)
    diagnosis = diagnose(spoiled, MOONS)
    assert "variance" in faults(diagnosis)
    assert "blown up: 2.weight" in diagnosis["variance"].sentence


def test_untrained() -> None:
    assert faults(diagnose(moons_method(), MOONS)) == {"learning"}


@pytest.mark.parametrize("with_history", [True, False])
def test_kl_weight_a_thousand_times_too_large(with_history: bool) -> None:
    method = moons_method(kl_weight=1000 / len(MOONS[0]))
    history = trained(method)
    diagnosis = diagnose(method, MOONS, history=history if with_history else None)
    assert faults(diagnosis) == {"kl_balance"}
    assert "Lower kl_weight" in diagnosis["kl_balance"].advice
    assert diagnosis["kl_balance"].values["weight"] == pytest.approx(1000)


def test_context_inside_the_data() -> None:
    method = moons_method(context=fsvi.contexts.Dataset(MOONS[0]))
    trained(method)
    assert faults(diagnose(method, MOONS)) >= {"context", "distance"}


@pytest.mark.parametrize("context", [MOONS[0], fsvi.contexts.Batch()])
def test_another_context_can_be_asked_about(healthy: tuple[fsvi.FSVI, fsvi.History], context: Any) -> None:
    assert diagnose(healthy[0], MOONS, context)["context"].severity == "fault"


def test_one_network_is_uncertain_nowhere() -> None:
    method = fsvi.MAP(mlp(2, (30, 30), 2, nn.Tanh), fsvi.Categorical())
    trained(method, epochs=200)
    diagnosis = diagnose(method, MOONS)
    assert {finding.name for finding in diagnosis} == {"learning", "distance", "calibration"}
    assert "distance" in faults(diagnosis)
    assert "use FSVI" in diagnosis["distance"].advice


def noisy_labels(num: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """p(y = 1) is 0.2 or 0.8, by the sign of x."""
    x = torch.randn(num, 1)
    return x, (torch.rand(num) < 0.5 + 0.3 * x[:, 0].sign()).long()


@pytest.mark.parametrize(
    ("slope", "severity", "kind"), [(50.0, "fault", "overconfident"), (0.1, "fault", "underconfident")]
)
def test_calibration_tells_the_direction(slope: float, severity: str, kind: str) -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardtanh(), nn.Linear(1, 2))
    with torch.no_grad():
        net[0].weight.fill_(1e3)
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[-slope], [slope]]))
        net[2].bias.zero_()
    method = fsvi.MAP(net, fsvi.Categorical())
    finding = check_calibration(Evidence.gather(method, noisy_labels(), None, None, 10))
    assert (finding.severity, kind in finding.sentence) == (severity, True)


def test_calibration_forgives_what_chance_explains() -> None:
    net = nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1.0]]))
        net.bias.zero_()
    method = fsvi.MAP(nn.Sequential(net), fsvi.Categorical())
    for _ in range(20):
        x = torch.randn(60, 1)
        y = (torch.rand(60) < x[:, 0].sigmoid()).long()
        assert check_calibration(Evidence.gather(method, (x, y), None, None, 10)).severity != "fault"


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


def test_the_monte_carlo_error_falls_with_the_root_of_the_draws(healthy: tuple[fsvi.FSVI, fsvi.History]) -> None:
    errors = [diagnose(healthy[0], MOONS, num_samples=num)["samples"].values["error"] for num in (4, 64)]
    assert 2.5 < errors[0] / errors[1] < 6.5


@pytest.mark.parametrize("name", [*METHODS, "ensemble:map", "ensemble:fsvi"])
def test_every_method_can_be_diagnosed(name: str) -> None:
    torch.manual_seed(0)
    settings = {"spg": {"num_prior_steps": 2}, "ensemble:map": {"size": 2}, "ensemble:fsvi": {"size": 2}}.get(name, {})
    method = fsvi.make_method(name, lambda: mlp(2, (6,), 2), fsvi.Categorical(), **settings)
    data = scenarios.points()
    history = fsvi.fit(method, data, epochs=2, progress=False)
    diagnosis = diagnose(method, data, history=history, num_samples=2)
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert "learning" in {finding.name for finding in diagnosis} or diagnosis.faults


def test_nothing_is_changed_by_a_diagnosis() -> None:
    method = scenarios.image_classifier()
    data = scenarios.images()
    fsvi.fit(method, data, epochs=1, progress=False)
    before, random = scenarios.copied(method), torch.get_rng_state()
    diagnose(method, data)
    assert scenarios.same_bits(before, method.tensors())
    assert torch.equal(random, torch.get_rng_state())


def test_a_loaded_method_is_diagnosed_without_its_context(tmp_path: Path) -> None:
    method = moons_method(context=fsvi.contexts.Dataset(MOONS[0]))
    trained(method, epochs=2)
    method.save(tmp_path / "m.fsvi")
    loaded = fsvi.load(tmp_path / "m.fsvi", mlp(2, (30, 30), 2, nn.Tanh))
    names = {finding.name for finding in diagnose(loaded, MOONS)}
    assert "variance" in names
    assert not names & {"context", "kl_balance"}


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": 3}, r"\bint\b"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"method": nn.Linear(2, 2)}, "Linear"),
        ({"context": torch.zeros(5, 3)}, "shape"),
    ],
)
def test_bad_input(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fsvi.InvalidInputError, match=message):
        diagnose(**{"method": scenarios.classifier(), "data": scenarios.points(), **settings})
