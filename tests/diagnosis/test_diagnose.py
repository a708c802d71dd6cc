"""Models broken on purpose: the diagnosis must name what is wrong, and find no fault with healthy ones."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.data.toy import snelson
from fsvi.diagnosis import diagnose
from fsvi.methods.registry import METHODS
from fsvi.networks import mlp
from moons import MOONS, moons_method, trained


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
        prior=fsvi.priors.Constant(10.0),
        num_context=20,
        kl_weight=0.015,
        stds=fsvi.Stds(lr_scale=10.0),
        linearize="conditional",
    )
    history = trained(method, (toy.x, toy.y), epochs=500)
    diagnosis = diagnose(method, (toy.x, toy.y), history=history)
    assert diagnosis.faults == []
    assert "coverage_90" in diagnosis["calibration"].values


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


class CountPredictive(fsvi.Predictive):
    """Counts with Poisson noise around each draw's rate: what a user's own likelihood may predict."""

    def __init__(self, rates: torch.Tensor) -> None:
        self.samples = rates

    @property
    def variance(self) -> torch.Tensor:
        return self.samples.mean(0) + self.samples.var(0, correction=0)

    def log_prob(self, y: Any) -> torch.Tensor:
        logs = torch.distributions.Poisson(self.samples).log_prob(torch.as_tensor(y)).sum(-1)
        return logs.logsumexp(0) - math.log(len(logs))

    @property
    def score(self) -> torch.Tensor:
        return self.variance.mean(-1).sqrt()


class Poisson(fsvi.Likelihood):
    def check_targets(self, y: torch.Tensor, num_outputs: int) -> torch.Tensor:
        return y.reshape(-1, num_outputs).float()

    def nll(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (f.exp() - y * f).sum(-1).mean()

    def predictive(self, f: torch.Tensor) -> CountPredictive:
        return CountPredictive(f.exp())


def test_a_likelihood_of_the_users_own_is_diagnosed() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 60)[:, None]
    y = torch.poisson((1.5 * x).exp())
    method = fsvi.MFVI(mlp(1, (16,), 1), Poisson())
    fsvi.fit(method, (x, y), epochs=100, lr=0.03)
    found = diagnose(method, (x, y))
    names = {finding.name for finding in found}
    assert "calibration" not in names and "learning" not in names
    assert {"distance", "samples", "variance"} <= names


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [(fsvi.Bernoulli(), 1), (fsvi.Bernoulli(), 2), (fsvi.Poisson(), 1), (fsvi.StudentT(), 1)],
    ids=["bernoulli", "labels", "poisson", "student"],
)
def test_every_likelihood_is_diagnosed(likelihood: fsvi.Likelihood, outputs: int) -> None:
    x, y = MOONS
    torch.manual_seed(0)
    targets = torch.stack([y, 1 - y], 1)[:, :outputs]
    method = fsvi.MAP(mlp(2, (30,), outputs), likelihood)
    history = trained(method, (x, targets), epochs=60)
    diagnosis = diagnose(method, (x, targets), history=history)
    names = [finding.name for finding in diagnosis]
    assert "learning" in names and ("calibration" in names) == (outputs == 1)
    assert diagnosis["learning"].severity == "ok"
