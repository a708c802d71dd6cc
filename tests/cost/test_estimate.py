import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.cost.estimate import _OVERHEAD, training_cost
from fsvi.cost.probe import Probe
from fsvi.methods.registry import METHODS
from fsvi.networks import mlp
from paper.bench.memory import step_memory
from paper.bench.steps import FSVI_METHODS, BenchStep


@pytest.mark.parametrize("method", ["map", *FSVI_METHODS])
def test_step_ratio_is_the_count_of_passes(method: str) -> None:
    step = BenchStep("cnn", method, 128, 0 if method == "map" else 32)
    assert fsvi.estimate_cost(step.make_method(), 128, step.inputs(1)).step_ratio == pytest.approx(step.limit, rel=0.01)


@pytest.mark.parametrize("method", ["map", *FSVI_METHODS])
def test_memory_is_what_a_step_takes(method: str) -> None:
    # Smaller steps are no quicker to measure, and vary more from process to process. The sampler can miss a peak on a
    # busy machine, but it cannot make one up: the largest measurement counts, of as many as it takes, up to ten.
    step = BenchStep("cnn", method, 128, 0 if method == "map" else 32)
    estimate = fsvi.estimate_cost(step.make_method(), 128, step.inputs(1)).peak_memory / 2**20
    measured = 0.0
    for _ in range(10):
        measured = max(measured, step_memory(step).added)
        if measured >= estimate / 1.3:
            break
    assert estimate == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize("settings", [{"linearize": "jvp"}, {"linearize": "exact"}, {"num_context_sets": 3}])
def test_extrapolation_is_what_a_full_step_counts(settings: dict) -> None:
    x, _ = scenarios.points()
    method = fsvi.FSVI(mlp(2, (20,), 2), fsvi.Categorical(), scenarios.box(), num_context=9, **settings)
    probe = Probe(method, x)
    probe.step(8, 9)
    full = probe.step(8, 9)
    cost = training_cost(method, 8, x)
    assert cost.added == pytest.approx(_OVERHEAD * max(full.alive), rel=0.02)
    assert cost.work == pytest.approx(full.work, rel=0.02)


def test_numbers_of_parameters() -> None:
    x, _ = scenarios.points()
    num = sum(p.numel() for p in scenarios.dense().parameters())
    both = fsvi.estimate_cost(scenarios.classifier(), 8)
    assert (both.parameters, both.stochastic_parameters) == (num, num)
    last = fsvi.estimate_cost(scenarios.classifier(stochastic="last_layer"), 8)
    assert (last.parameters, last.stochastic_parameters) == (num, 14)
    plain = fsvi.estimate_cost(fsvi.MAP(scenarios.dense(), fsvi.Categorical()), 8, x)
    assert (plain.stochastic_parameters, plain.memory_ratio, plain.step_ratio) == (0, 1.0, 1.0)
    prior = fsvi.estimate_cost(scenarios.classifier(prior=fsvi.priors.Induced(feature_variance=0.1)), 8)
    assert prior.stochastic_parameters == num


def test_an_ensemble_costs_its_members() -> None:
    x, _ = scenarios.points()
    member = fsvi.estimate_cost(scenarios.classifier(), 8)
    members = fsvi.Ensemble(scenarios.classifier, size=3)
    for index, each in enumerate(members.members):
        each.net[0].weight.data += index
    ensemble = fsvi.estimate_cost(members, 8, x)
    assert ensemble.parameters == 3 * member.parameters
    assert ensemble.stochastic_parameters == 3 * member.stochastic_parameters
    assert ensemble.step_ratio == pytest.approx(3 * member.step_ratio, rel=0.02)


def test_memory_grows_with_the_batch_and_the_context() -> None:
    sizes = [
        fsvi.estimate_cost(scenarios.classifier(num_context=k), b).peak_memory for b, k in ((8, 5), (800, 5), (8, 500))
    ]
    assert sizes[0] < sizes[1] and sizes[0] < sizes[2]


@pytest.mark.parametrize("name", [*METHODS, "ensemble:map"])
def test_every_method_has_an_estimate(name: str) -> None:
    method = fsvi.make_method(name, lambda: mlp(2, (6,), 2), fsvi.Categorical())
    estimate = fsvi.estimate_cost(method, 32, scenarios.points()[0])
    assert estimate.memory_ratio > 0.9
    assert estimate.step_ratio > 0.9
    assert estimate.to_dict()["peak_memory"] == estimate.peak_memory


@pytest.mark.parametrize("name", ["learned_noise", "batch_norm_jvp", "map_batch_norm"])
def test_an_estimate_changes_nothing(name: str) -> None:
    method, (x, y) = scenarios.build(name)
    method.check_batch(x, y)
    before, random = scenarios.copied(method), torch.get_rng_state()
    fsvi.estimate_cost(method, 16)
    assert scenarios.same_bits(before, method.tensors())
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for p in method.parameters())
    assert getattr(getattr(method, "context", None), "_bounds", None) is None


def test_the_shape_of_inputs_must_be_known() -> None:
    method = fsvi.MAP(mlp(2, (6,), 2), fsvi.Categorical())
    with pytest.raises(fsvi.InvalidInputError, match="pass x="):
        fsvi.estimate_cost(method, 8)
    method.predict(torch.zeros(1, 2))
    assert fsvi.estimate_cost(method, 8).parameters == 32
    with pytest.raises(fsvi.InvalidInputError, match="batch_size=0"):
        fsvi.estimate_cost(method, 0)


def test_indices_as_inputs() -> None:
    net = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    assert (
        fsvi.estimate_cost(fsvi.MAP(net, fsvi.Categorical()), 8, torch.zeros(2, 3, dtype=torch.int64)).peak_memory > 0
    )


def test_text() -> None:
    text = str(fsvi.estimate_cost(scenarios.classifier(), 8))
    assert text.startswith("32 parameters, 32 of them") and "MAP" in text
