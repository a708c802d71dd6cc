import torch
from torch import nn

from fsvi.export import functions_of
from fsvi.networks.network import Network


def test_draws_of_the_last_layer_take_one_pass_and_equal_a_pass_each():
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    calls = []
    net[1].register_forward_hook(lambda *_: calls.append(1))
    network, x = Network(net).examined(torch.randn(2, 3)), torch.randn(4, 3)
    draws = [{"2.weight": torch.randn(2, 5), "2.bias": torch.randn(2)} for _ in range(6)]
    calls.clear()
    values = functions_of(network, draws)(x)
    assert len(calls) == 1
    torch.testing.assert_close(values, torch.stack([network(x, draw) for draw in draws]))
