"""Experiments build and train methods reproducibly."""

import torch

import fsvi
from paper.experiment import Experiment


def experiment(**changes) -> Experiment:
    make = lambda: fsvi.MAP(fsvi.networks.mlp(2, (3,), 1), fsvi.Gaussian())  # noqa: E731
    data = (torch.ones(8, 2), torch.ones(8, 1))
    return Experiment(make, data, {"epochs": 2, "lr": 1e-3}, evaluate=None, **changes)


def parameters(method) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in method.parameters()])


def test_the_seed_determines_the_initial_parameters_and_nothing_else():
    state = torch.random.get_rng_state()
    first, again, other = (parameters(experiment().build(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())
