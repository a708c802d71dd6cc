import pytest
import torch
from torch import nn

from fsvi.networks import cnn

NETWORKS = {
    "default": (lambda: cnn(), (1, 28, 28), 10),
    "large": (lambda: cnn(3, 7, image_size=32, dropout=0.5), (3, 32, 32), 7),
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


def test_it_is_the_papers():
    """The paper applies the ReLU before the pool; ours pools first, which gives the same values."""
    net, x = cnn(), torch.randn(3, 1, 28, 28)
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    convolved = pool(relu(net[3](pool(relu(net[0](x))))))
    torch.testing.assert_close(net(x), net[9](relu(net[7](convolved.flatten(1)))))
    assert (net[0].out_channels, net[3].out_channels, net[7].out_features) == (32, 64, 128)
    assert any(isinstance(m, nn.Dropout) for m in cnn(dropout=0.1))
