import pytest
import torch
from torch import nn

from fsvi.networks import mlp

NETWORKS = {
    "hidden": (lambda: mlp(2, (30, 30), 2, nn.Tanh), (2,), 2),
    "linear": (lambda: mlp(3, (), 4), (3,), 4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_output_shape_and_gradient_reaches_every_parameter(name):
    make, shape, outputs = NETWORKS[name]
    net = make()
    y = net(torch.randn(4, *shape))
    assert y.shape == (4, outputs)
    y.square().sum().backward()
    unreached = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unreached == []
