"""Outputs under many draws: those of full passes, at the cost of the layers after the first random one."""

import weakref
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import fsvi
from fsvi.methods import drawing
from fsvi.networks.shared_start import SharedStart

X = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 5), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(5, 2))


METHODS = {
    "dropout": lambda: fsvi.MCDropout(net(), fsvi.Categorical()),
    "rank1": lambda: fsvi.Rank1(net(), fsvi.Categorical()),
    "frozen rank1": lambda: fsvi.Rank1(fsvi.Network(net()).frozen(["0", "2"]), fsvi.Categorical()),
    "mfvi": lambda: fsvi.MFVI(net(), fsvi.Categorical()),
    "subset": lambda: fsvi.FSVI(net(), fsvi.Categorical(), stochastic=["5"]),
}
LAYERS = {
    "dropout": {6: 2, 5: 4, 2: 4},
    "rank1": {6: 8, 5: 4, 2: 4},
    "frozen rank1": {6: 2, 5: 4, 2: 4},
    "mfvi": {6: 8, 5: 4, 2: 4},
    "subset": {6: 2, 5: 4, 2: 4},
}
"""How often layers with these numbers of outputs are computed for 4 draws; the first two have 6."""


class Counting(torch.overrides.TorchFunctionMode):
    """Counts the dense layers that are computed, by their number of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: Counter[int] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            self.sizes[args[1].shape[0]] += 1
        return func(*args, **(kwargs or {}))


def without_sharing(method: fsvi.Method, **settings) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedStart, "run", lambda self, function: function())
        return method.predict(X, 4, **settings).samples


@pytest.fixture
def large(monkeypatch):
    """No network counts as small."""
    monkeypatch.setattr(drawing, "_MOST_PARAMETERS", 0)


@pytest.mark.parametrize("name", ["mfvi", "subset", "small subset"])
@pytest.mark.parametrize("num", [1, 4, 70])
def test_stacked_draws_are_those_of_full_passes(name, num, monkeypatch):
    plain = nn.Sequential(*(layer for layer in net() if not isinstance(layer, nn.Dropout)))
    settings = {"subset": {"stochastic": ["4"]}, "small subset": {"stochastic": ["4.bias"]}}.get(name, {})
    method = (fsvi.FSVI if settings else fsvi.MFVI)(plain, fsvi.Categorical(), **settings)
    stacked = method.predict(X, num, batch_size=3).samples
    monkeypatch.setattr(drawing, "_MOST_PARAMETERS", 0)
    torch.testing.assert_close(stacked, method.predict(X, num, batch_size=3).samples)


def test_stacked_draws_hold_few_draws_at_once(monkeypatch):
    monkeypatch.setattr(drawing, "_DRAWS_AT_ONCE", 4)
    plain = nn.Sequential(*(layer for layer in net() if not isinstance(layer, nn.Dropout)))
    network = fsvi.MFVI(plain, fsvi.Categorical()).network
    made, alive = [], []

    def draws():
        for _ in range(40):
            params = {name: torch.randn_like(p) for name, p in plain.named_parameters()}
            made.extend(weakref.ref(value) for value in params.values())
            alive.append(sum(each() is not None for each in made))
            yield params

    outputs = drawing.evaluate_stacked(network, draws(), [X])
    assert outputs.shape[:2] == (40, len(X))
    assert max(alive) <= 9 * len(list(plain.parameters()))  # the last group, and the one that is being made


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("batch_size", [3, 10])
@pytest.mark.usefixtures("large")
def test_draws_are_those_of_full_passes(name, batch_size):
    method = METHODS[name]()
    samples = method.predict(X, 4, batch_size=batch_size).samples
    assert torch.equal(samples, without_sharing(method, batch_size=batch_size))
    assert len(samples.unique(dim=0)) == 4


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("large")
def test_layers_before_the_first_random_one_are_computed_once(name):
    method = METHODS[name]()
    method.predict(X, 4)  # the first time, the network is looked at
    with Counting() as counting:
        method.predict(X, 4)
    assert counting.sizes == LAYERS[name]


@pytest.mark.parametrize("name", ["dropout", "subset"])
@pytest.mark.usefixtures("large")
def test_draws_in_groups_are_the_same(name, monkeypatch):
    method = METHODS[name]()
    whole = method.predict(X, 5, batch_size=3).samples
    monkeypatch.setattr(drawing, "_NUMBERS_AT_ONCE", 2 * (2 * 6 if name == "dropout" else 6 * 5 + 5 + 2 * 5 + 2))
    with Counting() as counting:
        grouped = method.predict(X, 5, batch_size=3).samples
    assert torch.equal(grouped, whole)
    assert counting.sizes[6] == 2 * 3 * 3  # two layers, three groups of draws, three batches
