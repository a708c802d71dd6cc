"""Other libraries: plain PyTorch is what it says, and a library that is missing or broken is described."""

import copy
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fsvi.experiments.bench.peers import (
    PREDICTIONS,
    STEPS,
    Peer,
    Work,
    call,
    plain_forward,
    plain_step,
    version,
    why_missing,
)
from fsvi.inputs import Bundle

PEER = Peer("a-library", "a_library", "a step", "mfvi", "It does less.", plain_step)


def work(*layers: nn.Module, num_samples: int = 1) -> Work:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), *layers, nn.Linear(8, 4))
    return Work(net, torch.randn(6, 3), torch.arange(6) % 4, num_samples)


def test_a_plain_step_is_a_step_of_adam_on_the_cross_entropy():
    given = work()
    net = copy.deepcopy(given.net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    act = plain_step(given)
    for _ in range(3):
        act()
        optimizer.zero_grad()
        F.cross_entropy(net(given.x), given.y).backward()
        optimizer.step()
    for ours, theirs in zip(given.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_forward_pass_is_that_of_the_network_in_eval_mode():
    given = work(nn.Dropout(0.5))
    outputs = plain_forward(given)()
    torch.testing.assert_close(outputs, given.net.eval()(given.x))
    assert not outputs.requires_grad


def test_a_network_with_several_inputs_gets_them_by_name():
    class Sum(nn.Module):
        def forward(self, first, second):
            return first - second

    x = Bundle({"second": torch.ones(2), "first": torch.zeros(2)})
    assert call(Sum(), x).tolist() == [-1.0, -1.0]


def test_dropout_in_a_loop_averages_random_passes():
    torch.manual_seed(0)
    act = PREDICTIONS["dropout loop"].make(work(nn.Dropout(0.5), num_samples=20))
    first, second = act(), act()
    torch.testing.assert_close(first.sum(1), torch.ones(6))
    assert not torch.equal(first, second)


def test_a_library_that_is_not_installed_has_a_sentence():
    assert why_missing(PEER) == "a-library is not installed."
    assert version(PEER) is None


def test_a_library_that_misses_another_one_has_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "a_library.py").write_text("import torch_of_another_year")
    monkeypatch.syspath_prepend(tmp_path)
    assert why_missing(PEER) == "a-library cannot be imported: No module named 'torch_of_another_year'."


def test_a_library_that_can_be_imported_is_not_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_library", ModuleType("a_library"))
    assert why_missing(PEER) is None
    assert why_missing(replace(PEER, library="torch", module="torch")) is None


@pytest.mark.filterwarnings("ignore")  # other libraries use what PyTorch deprecates
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_an_installed_library_changes_its_parameters(name):
    if why_missing(STEPS[name]) is not None:
        pytest.skip(why_missing(STEPS[name]))
    given = work()
    act = STEPS[name].make(given)
    before = [parameter.detach().clone() for parameter in given.net.parameters()]
    act()
    after = list(given.net.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_prediction_of_an_installed_library_has_probabilities(name):
    if why_missing(PREDICTIONS[name]) is not None:
        pytest.skip(why_missing(PREDICTIONS[name]))
    probabilities = PREDICTIONS[name].make(work(nn.Dropout(0.2), num_samples=3))()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(6))
    assert probabilities.shape == (6, 4) and bool((probabilities >= 0).all())
