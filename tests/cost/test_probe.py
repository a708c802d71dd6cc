import copy

import pytest
import torch

import fsvi
import scenarios
from fsvi.cost.probe import Probe, members


def test_members_of_an_ensemble_and_of_a_single_method() -> None:
    method = scenarios.classifier()
    assert members(method) == [method]
    ensemble = fsvi.Ensemble(scenarios.classifier, 2)
    assert members(ensemble) == list(ensemble.members)


@pytest.mark.parametrize("name", ["conditional", "map", "batch_norm"])
def test_a_probe_changes_nothing_in_the_method(name: str) -> None:
    method, (x, _) = scenarios.build(name)
    before, context = copy.deepcopy(scenarios.copied(method)), getattr(method, "context", None)
    Probe(method, x).step(2, 4)
    assert scenarios.same_bits(scenarios.copied(method), before)
    assert getattr(method, "context", None) is context


def test_larger_steps_cost_more() -> None:
    probe = Probe(scenarios.classifier(), scenarios.points()[0])
    probe.step(2, 4)
    small, batch, context = (probe.step(*sizes) for sizes in ((2, 4), (20, 4), (2, 40)))
    assert small.work < min(batch.work, context.work)
    assert max(small.alive) < min(max(batch.alive), max(context.alive))


def test_targets_of_any_likelihood_are_made() -> None:
    method, (x, _) = scenarios.build("learned_noise")
    assert Probe(method, x).step(3, 4).work > 0
    tokens = fsvi.MAP(
        torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Flatten(), torch.nn.Linear(8, 3)), fsvi.Categorical()
    )
    assert Probe(tokens, torch.zeros(2, 2, dtype=torch.int64)).step(2, 4).work > 0


def test_memory_that_is_held_counts_the_network_of_the_prior_and_shared_memory_once() -> None:
    net = fsvi.networks.mlp(3, (50,), 2)
    own, head = (sum(p.numel() * p.element_size() for p in module.parameters()) for module in (net, net[-1]))

    def held(prior: fsvi.priors.Prior) -> int:
        method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), prior=prior)
        return Probe(method, torch.randn(5, 3)).held

    # In training the network shares the memory of the means. The prior has its network, the means of all of that
    # network's parameters, and the standard deviations of its last layer.
    assert held(fsvi.priors.Constant()) == 2 * own
    assert held(fsvi.priors.Induced()) == 2 * own + 2 * own + head
