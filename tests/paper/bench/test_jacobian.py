"""The step that materializes the Jacobian is exact."""

from __future__ import annotations

import torch

import fsvi
from paper.bench.jacobian import JacobianFSVI


def test_jacobian_of_one_output_is_the_exact_linearization() -> None:
    torch.manual_seed(0)
    net = fsvi.networks.mlp(3, (5,), 1, torch.nn.Tanh).double()
    settings = dict(likelihood=fsvi.Gaussian(), context=fsvi.contexts.Uniform(low=[-1] * 3, high=[1] * 3))
    x = torch.randn(4, 3, dtype=torch.float64)
    exact = fsvi.FSVI(net, linearize="exact", **settings).function_kl(x)
    assert torch.allclose(JacobianFSVI(net, **settings).function_kl(x), exact, rtol=1e-9)


def test_jacobian_sums_over_independent_outputs() -> None:
    torch.manual_seed(0)
    net = fsvi.networks.mlp(3, (), 2).double()
    settings = dict(likelihood=fsvi.Categorical(), context=fsvi.contexts.Uniform(low=[-1] * 3, high=[1] * 3))
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = fsvi.FSVI(net, stochastic="last_layer", **settings).function_kl(x)
    assert torch.allclose(JacobianFSVI(net, **settings).function_kl(x), expected, rtol=1e-9)
