import torch
from torch import nn

from fsvi.networks import cnn


def test_it_is_the_papers():
    """The paper applies the ReLU before the pool; ours pools first, which gives the same values."""
    net, x = cnn(), torch.randn(3, 1, 28, 28)
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    convolved = pool(relu(net[3](pool(relu(net[0](x))))))
    torch.testing.assert_close(net(x), net[9](relu(net[7](convolved.flatten(1)))))
    assert (net[0].out_channels, net[3].out_channels, net[7].out_features) == (32, 64, 128)
    assert any(isinstance(m, nn.Dropout) for m in cnn(dropout=0.1))
