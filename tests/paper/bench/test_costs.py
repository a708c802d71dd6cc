"""The benchmark: plain PyTorch is what it says; what is timed and written down; other libraries."""

import copy
import json
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from paper.bench import costs, peers
from paper.bench.costs import interleave, run_bench, spread, step_memory
from paper.bench.steps import FSVI, Size, Work, plain_forward, plain_step


def work() -> Work:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    return Work(net, torch.randn(6, 3), torch.arange(6) % 4)


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


def test_a_plain_prediction_is_a_pass_of_the_network():
    given = work()
    outputs = plain_forward(given)()
    torch.testing.assert_close(outputs, given.net.eval()(given.x))
    assert not outputs.requires_grad


def test_every_action_is_timed_in_every_round_and_ratios_are_taken_round_by_round(monkeypatch):
    calls = []
    seconds = interleave({"a": lambda: calls.append("a"), "b": lambda: time.sleep(0.002)}, 5)
    assert len(calls) == 10 and len(seconds["a"]) == len(seconds["b"]) == 5
    assert min(seconds["b"]) >= 0.002 > np.median(seconds["a"])
    assert spread([1, 2, 3, 4, 100]) == {"median": 3.0, "low": 2.0, "high": 4.0}
    monkeypatch.setattr(costs, "interleave", lambda actions, rounds: {"a": [2.0, 8.0], "base": [1.0, 4.0]})
    found = costs._costs({"a": None, "base": None}, "base", 2)
    assert found["a"]["ratio"]["low"] == found["a"]["ratio"]["high"] == 2.0 and found["a"]["ms"]["median"] == 5000


@pytest.mark.parametrize("name", ["map", *FSVI])
def test_steps_and_predictions_of_fsvi(name):
    size = Size("mlp 20", 4, 4)
    size.step(name)()
    p = size.prediction(name, 3, 2)()
    assert p.shape == (3, 10) and torch.allclose(p.sum(-1), torch.ones(3), atol=1e-5)


def test_memory_of_a_step_grows_with_the_network():
    small, large = (step_memory(Size(name, 4, 0), costs.PLAIN, repeats=1) for name in ("mlp 10", "mlp 2000-2000"))
    assert large > small + 50  # 5.6 million parameters, their gradients and Adam's two moments in MB


def test_sections_are_written_one_by_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(costs, "_SIZES", {"cnn": Size("mlp 10", 4, 2)})
    monkeypatch.setattr(costs, "_PREDICTIONS", {"last_layer": 3})
    monkeypatch.setattr(peers, "STEPS", {"broken": lambda work: 1 / 0})
    monkeypatch.setattr(peers, "PREDICTIONS", {"by hand": plain_forward})
    run_bench(tmp_path, True, ["cnn"], others=True)
    run_bench(tmp_path, True, ["predictions"], others=True)
    found = json.loads((tmp_path / "peers.json").read_text())
    assert {"cnn", "predictions"} <= set(found) and found["cnn"]["quick"]
    draws = [(row["method"], row["num_samples"]) for row in found["predictions"]["rows"]]
    assert draws == [("forward", 1), ("last_layer", 3), ("by hand", 1)]
    assert found["cnn"]["rows"][0]["ratio"]["median"] == 1
    printed = capsys.readouterr()
    assert "ratio.median" in printed.out and "broken cannot be measured: division by zero" in printed.err
    with pytest.raises(InvalidInputError, match="only="):
        run_bench(tmp_path, True, ["nothing"])


@pytest.mark.filterwarnings("ignore")  # other libraries use what PyTorch deprecates
@pytest.mark.parametrize("name", peers.STEPS | peers.PREDICTIONS)
def test_what_is_installed_works(name):
    given = work()
    before = [parameter.detach().clone() for parameter in given.net.parameters()]
    try:
        found = (peers.STEPS | peers.PREDICTIONS)[name](given)()
    except ImportError as error:
        pytest.skip(f"`make peers` installs what this measures: {error}")
    if name in peers.STEPS:
        after = list(given.net.parameters())
        assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    else:
        torch.testing.assert_close(found.sum(1), torch.ones(6))
