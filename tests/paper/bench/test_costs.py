"""The benchmark's own measurements: what is timed, how it is written down, and which libraries are missing."""

import json
import time

import pytest
import torch

from fsvi.errors import InvalidInputError
from paper.bench import costs, measuring, peers
from paper.bench.measuring import FORWARD, FSVI, PLAIN, Size, interleave, network_of, spread


def test_every_action_is_timed_in_every_round():
    calls = []
    seconds = interleave({"a": lambda: calls.append("a"), "b": lambda: time.sleep(0.002)}, 5)
    assert len(calls) == 10 and len(seconds["a"]) == len(seconds["b"]) == 5
    assert min(seconds["b"]) >= 0.002 > max(seconds["a"])


def test_a_spread_is_the_median_and_half_the_distance_of_quartiles():
    assert spread([1, 2, 3, 4, 100]) == {"median": 3.0, "half": 1.0}


def test_ratios_are_taken_round_by_round(monkeypatch):
    monkeypatch.setattr(measuring, "interleave", lambda actions, rounds: {"a": [2.0, 8.0], "base": [1.0, 4.0]})
    found = measuring.costs({"a": None, "base": None}, "base", 2)
    assert found["a"]["ratio"] == {"median": 2.0, "half": 0.0} and found["a"]["ms"]["median"] == 5000


@pytest.mark.parametrize(
    ("name", "outputs"),
    [("cnn", 10), ("mlp 20-30", 10), ("cnn (7 classes)", 7), ("cnn with dropout", 10), ("transformer", 10)],
)
def test_networks_by_name(name, outputs):
    make, _ = network_of(name)
    x = Size(name, 2, 2).inputs(2)
    net = make()
    out = net(x) if isinstance(x, torch.Tensor) else net(**x.tree)
    assert out.shape == (2, outputs)
    assert ("dropout" in name) == any(isinstance(layer, torch.nn.Dropout) for layer in net) if "cnn" in name else True


@pytest.mark.parametrize("name", [PLAIN, "map", *FSVI, "dropout by hand", "longer by hand"])
def test_a_step_trains(name):
    size = Size("mlp 20", 4, 4)
    torch.manual_seed(0)
    act = size.step(name)
    act()
    act()


@pytest.mark.parametrize("name", [FORWARD, "map", "last_layer", "dropout loop"])
def test_a_prediction_gives_probabilities(name):
    p = Size("mlp 20 with dropout", 4, 4).prediction(name, 3, 2)()
    if name != FORWARD:
        assert p.shape == (3, 10) and torch.allclose(p.sum(-1), torch.ones(3), atol=1e-5)


def test_memory_of_a_step_grows_with_the_network():
    small, large = (measuring.step_memory(Size(name, 4, 0), PLAIN, repeats=1) for name in ("mlp 10", "mlp 2000-2000"))
    assert large > small + 50  # 5.6 million parameters, their gradients and Adam's two moments in MB


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(costs, "_SIZES", {"cnn": Size("mlp 10", 4, 2)})
    monkeypatch.setattr(costs, "_GROWTHS", {"width": ("units", {n: Size(f"mlp {n}", 4, 2) for n in (5, 10)})})
    monkeypatch.setattr(costs, "_PREDICTIONS", {"last_layer": 3})


def test_sections_are_written_one_by_one(small, tmp_path, capsys):
    costs.run_bench(tmp_path, True, "cnn")
    costs.run_bench(tmp_path, True, "predictions")
    found = json.loads((tmp_path / "bench.json").read_text())
    assert {"cnn", "predictions"} <= set(found) and found["cnn"]["quick"]
    assert [row["what"] for row in found["cnn"]["rows"]] == [PLAIN, "map", *FSVI]
    assert found["cnn"]["rows"][0]["ratio"]["median"] == 1
    assert "| plain PyTorch | 4 | 2 |" in capsys.readouterr().out
    with pytest.raises(InvalidInputError, match="only="):
        costs.run_bench(tmp_path, True, "nothing")


def test_the_page_of_other_libraries(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "why_missing", lambda peer: None if peer.library == "torch" else "It is not installed.")
    monkeypatch.setattr(costs, "_PEER_STEPS", ("map", *FSVI))
    costs.run_peer_bench(tmp_path, True, "cnn,width")
    page = (tmp_path / "index.md").read_text()
    assert "## Cnn" in page and "longer by hand" in page and "neither the loss" in page
    assert (tmp_path / "width.svg").exists() and "not installed" in capsys.readouterr().err
