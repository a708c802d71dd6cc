"""Costs as sizes grow."""

import pytest

from paper.bench.growth import GROWTHS
from paper.bench.memory import Memory
from paper.bench.predictions import BenchPrediction
from paper.bench.steps import NETWORKS


@pytest.mark.parametrize("name", GROWTHS)
def test_every_size_has_its_network(name):
    growth = GROWTHS[name]
    made = {growth.make(method, size) for method in growth.methods for size in growth.sizes}
    assert len(made) == len(growth.methods) * len(growth.sizes)
    assert all(each.network in NETWORKS for each in made)


@pytest.mark.parametrize(("name", "outputs"), [("width", 10), ("depth", 10), ("outputs", 1000)])
def test_networks_have_the_size_that_they_are_named_after(name, outputs):
    growth = GROWTHS[name]
    *_, head = NETWORKS[growth.make("jvp", growth.sizes[-1]).network].make().children()
    assert head.out_features == outputs
    assert growth.make("jvp", growth.sizes[-1]).num_parameters > growth.make("jvp", growth.sizes[0]).num_parameters


@pytest.mark.parametrize("name", ["context", "draws"])
def test_points_have_their_sizes(name, monkeypatch):
    def record(actions, rounds):
        return {each: [1.0] * rounds for each in actions}

    monkeypatch.setattr("paper.bench.step_costs.interleave", record)
    monkeypatch.setattr("paper.bench.predictions.interleave", record)
    monkeypatch.setattr("paper.bench.step_costs.step_memory", lambda step, repeats: Memory(300.0, 50.0))
    growth = GROWTHS[name]
    measured = growth.measure(rounds=2, most=2)
    points = {(point["method"], point["size"]) for point in measured["points"]}
    assert points == {(method, size) for method in growth.methods for size in growth.sizes[:2]}
    is_prediction = isinstance(growth.make(growth.methods[0], 1), BenchPrediction)
    assert all(("memory_ratio" in point) != is_prediction for point in measured["points"])
