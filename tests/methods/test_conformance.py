"""One suite for every method of the registry, and for an ensemble: what the protocol promises.

A property is tested for every method, but on one task only, another one for each property: `cases` goes around them.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fsvi
import scenarios
from fsvi.methods.registry import METHODS, make_method
from fsvi.networks.resnet import Residual

EPOCHS, BATCH_SIZE, SAMPLES = 2, 5, 4
CLASSES_ONLY = {"duq"}
REAL = "mlp-regression"
CLOSED_FORM = {"vbll", "fmgp", "fsvi-fixed-mean"}
"""methods for classes and Gaussian targets only"""
FIXED = {"fmgp", "fsvi-fixed-mean"}
"""methods that never change the network they are given"""
SMALL: dict[str, dict[str, Any]] = {
    "swag": {"start": 0.3, "num_models": 2, "rank": 3},
    "spg": {"num_context": 4, "num_latents": 4, "num_prior_steps": 3, "num_samples": 2},
    "fbnn": {"num_context": 4, "num_samples": 4, "injected_noise": 0.1},
    "fs-eb": {"num_context": 4},
    "gfsvi": {"num_context": 4},
    "fsvi": {"num_context": 4},
    "s-fsvi": {"num_context": 4},
    "fsvi-fixed-mean": {"num_context": 4, "num_features": 8},
    "fmgp": {"num_inducing": 4},
    "sngp": {"num_features": 16},
}


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs))


def cnn(outputs: int) -> nn.Module:
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), pooled, nn.Linear(4, outputs))


def resnet(outputs: int) -> nn.Module:
    body = [nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)]
    stem = [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU()]
    return nn.Sequential(
        *stem, Residual(body, 3, 4, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs)
    )


def images(num: int) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 5, 5) whose class is their brightness."""
    x, y = scenarios.points(num)
    return x.sum(1)[:, None, None, None] + torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5).expand(num, 1, 5, 5), y


@dataclass(frozen=True)
class Task:
    """A network, a likelihood and data."""

    net: Callable[[int], nn.Module]
    data: Callable[..., tuple[Tensor, Tensor]]
    outputs: int = 2
    likelihood: Callable[[], fsvi.likelihoods.Likelihood] = fsvi.Categorical

    @property
    def is_categorical(self) -> bool:
        return self.likelihood is fsvi.Categorical

    def make(self, name: str, seed: int = 0, prepare: Callable[[nn.Module], Any] = lambda net: None) -> fsvi.Method:
        torch.manual_seed(seed)
        net = self.net(self.outputs)
        prepare(net)
        likelihood = self.likelihood()
        settings = SMALL.get(member_name(name), {})
        return make_method(name, net, likelihood, **settings, **({"size": 2} if name != member_name(name) else {}))


def counts(num: int = 20) -> tuple[Tensor, Tensor]:
    x, y = scenarios.curve(num)
    return x, (3 * (y - y.min())).round()


def several_labels(num: int = 20) -> tuple[Tensor, Tensor]:
    """Two labels per point, the second one unknown for the first point."""
    x, _ = scenarios.points(num)
    y = (x > 0).float()
    y[0, 1] = torch.nan
    return x, y


TASKS = {
    "mlp": Task(mlp, scenarios.points),
    REAL: Task(mlp, scenarios.curve, 1, lambda: fsvi.Gaussian(noise=0.5, learn_noise=True)),
    "mlp-bernoulli": Task(mlp, scenarios.points, 1, fsvi.Bernoulli),
    "mlp-labels": Task(mlp, several_labels, 2, fsvi.Bernoulli),
    "mlp-poisson": Task(mlp, counts, 1, fsvi.Poisson),
    "mlp-student": Task(mlp, scenarios.curve, 1, fsvi.StudentT),
    "cnn": Task(cnn, images),
    "resnet": Task(resnet, images),
}


def member_name(name: str) -> str:
    return name.removeprefix("ensemble:")


def is_defined(name: str, task: str) -> bool:
    refused = CLASSES_ONLY if task == REAL else CLASSES_ONLY | CLOSED_FORM
    return TASKS[task].is_categorical or member_name(name) not in refused


NAMES = [*METHODS, "ensemble:vogn"]


def cases(first: int, *tasks: str):
    """Every method with one of the tasks, around and around from the given one on."""
    chosen = []
    for index, name in enumerate(NAMES):
        defined = [task for task in tasks or TASKS if is_defined(name, task)]
        chosen.append((name, defined[(first + index) % len(defined)]))
    return pytest.mark.parametrize(("name", "task"), chosen)


def data(task: str, num: int = 10) -> tuple[Tensor, Tensor]:
    return TASKS[task].data(num)


def train(method: fsvi.Method, task: str, **settings: Any) -> fsvi.training.History:
    usual = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "schedule": None}
    return fsvi.fit(method, data(task), **{**usual, **settings})


@cache
def trained(name: str, task: str) -> tuple[fsvi.Method, dict[str, list[float]]]:
    """A trained method and the course of its loss; no test may change it."""
    method = TASKS[task].make(name)
    return method, train(method, task).terms


def predictions(method: fsvi.Method, task: str, **settings: Any) -> dict[str, Tensor]:
    p = method.predict(data(task)[0], SAMPLES, **settings)
    return {"samples": p.samples, "variance": p.variance, "score": p.score}


# What comes out ------------------------------------------------------------------------------------------------------


@cases(0)
def test_shapes_and_probabilities(name, task):
    method, _ = trained(name, task)
    x, y = data(task)
    p = method.predict(x, SAMPLES)
    outputs = TASKS[task].outputs
    assert p.samples.shape[1:] == (len(x), outputs) and 1 <= len(p.samples) <= SAMPLES
    assert p.mean.shape == p.variance.shape == (len(x), outputs) and len(p) == len(x)
    assert p.log_prob(y).shape == p.score.shape == (len(x),)
    assert all(bool(t.isfinite().all()) for t in (p.mean, p.variance, p.log_prob(y), p.score))
    assert bool((p.variance >= 0).all())
    if TASKS[task].is_categorical:
        torch.testing.assert_close(p.samples.sum(-1), torch.ones(p.samples.shape[:2]))
        assert bool((p.samples >= 0).all())


@cases(1)
def test_predictions_do_not_depend_on_the_batch(name, task):
    method, _ = trained(name, task)
    whole = predictions(method, task)
    for size in (1, 4):
        torch.testing.assert_close(predictions(method, task, batch_size=size), whole, rtol=1e-4, atol=1e-5)


@cases(2)
def test_prediction_repeats_itself_and_changes_nothing(name, task):
    method, _ = trained(name, task)
    state, before = torch.get_rng_state(), scenarios.copied(method)
    first, again = predictions(method, task, seed=3), predictions(method, task, seed=3)
    assert scenarios.same_bits(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert scenarios.same_bits(method.state_dict(), before)


@cases(0, "resnet")
def test_statistics_of_batch_norm_follow_training(name, task):
    method, _ = trained(name, task)
    norms = [module for module in method.net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms and all(bool((norm.running_mean != 0).all()) == (name not in FIXED) for norm in norms)


# Training ------------------------------------------------------------------------------------------------------------


@cases(4)
def test_saved_and_loaded_it_predicts_identically(name, task, tmp_path):
    method, _ = trained(name, task)
    method.save(tmp_path / "saved")
    expected = predictions(method, task)
    for net in [TASKS[task].net(TASKS[task].outputs), *([] if task == "resnet" else [None])]:
        loaded = fsvi.load(tmp_path / "saved", net)
        assert type(loaded) is type(method)
        assert scenarios.same_bits(predictions(loaded, task), expected)


@cases(5)
def test_killed_and_resumed_it_ends_in_the_same_bits(name, task, tmp_path, monkeypatch):
    method, terms = trained(name, task)
    killed = TASKS[task].make(name)
    kill_in_step(killed, 4, monkeypatch)  # the second of the second epoch
    with pytest.raises(InterruptedError):
        train(killed, task, checkpoint=tmp_path)
    resumed = TASKS[task].make(name, seed=1)
    history = train(resumed, task, checkpoint=tmp_path, resume=True)
    assert history.terms == terms
    assert scenarios.same_bits(resumed.state_dict(), method.state_dict())
    assert scenarios.same_bits(predictions(resumed, task), predictions(method, task))


@cases(0, *(task for task in TASKS if task.startswith("mlp")))
def test_the_loss_falls(name, task):
    """One output has less to lose than two, and draws of a rate vary much: medians. A variance alone gains little."""
    history = fsvi.fit(TASKS[task].make(name), data(task, 40), epochs=30, batch_size=20, lr=0.03)
    assert next(iter(history.terms)) == "nll"
    for course in (history.loss, history.terms["nll"]):
        assert median(course[-5:]) < median(course[:5]) - (0.01 if name in FIXED else 0.05)


@cases(6)
def test_frozen_parameters_and_the_given_network_do_not_change(name, task):
    given: list[nn.Module] = []

    def freeze(net: nn.Module) -> None:
        net[0].weight.requires_grad_(False)
        given.append(net)

    method = TASKS[task].make(name, prepare=freeze)
    before = deepcopy(given[0].state_dict())
    train(method, task)
    after = given[0].state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert not given[0][0].weight.requires_grad
    assert torch.equal(method.net[0].weight, before["0.weight"])


@pytest.mark.parametrize(
    ("name", "task"), [(name, task) for name in METHODS for task in TASKS if not is_defined(name, task)]
)
def test_methods_say_which_likelihoods_they_do_not_take(name, task):
    with pytest.raises(fsvi.errors.InvalidInputError, match=type(TASKS[task].likelihood()).__name__):
        TASKS[task].make(name)


def kill_in_step(method: fsvi.Method, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training die in its step of this number, before it has moved anything."""
    forward, steps = method.forward, iter(range(1, number))

    def dying(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if next(steps, None) is None:
            raise InterruptedError
        return forward(x, y)

    monkeypatch.setattr(method, "forward", dying)
