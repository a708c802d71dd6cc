"""Other libraries: what is installed works, and a library that is missing or broken is described."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

from paper.bench.by_hand import Work, plain_step
from paper.bench.peers import PREDICTIONS, STEPS, Peer, why_missing

PEER = Peer("a-library", "a_library", "a step", "It does less.", plain_step)


def work(*layers: nn.Module, num_samples: int = 1) -> Work:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), *layers, nn.Linear(8, 4))
    return Work(net, torch.randn(6, 3), torch.arange(6) % 4, num_samples, torch.randn(9, 3), num_context=4)


def test_a_library_that_is_not_installed_has_a_sentence():
    assert why_missing(PEER) == "a-library is not installed."


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
    if name == "posteriors":
        pytest.importorskip("torchopt")
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
