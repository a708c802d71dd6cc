"""Plain PyTorch is what it says."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from fsvi.inputs import Bundle
from paper.bench.by_hand import Work, call, dropout_prediction, dropout_step, longer_step, plain_forward, plain_step


def work(*layers: nn.Module, num_samples: int = 1) -> Work:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), *layers, nn.Linear(8, 4))
    return Work(net, torch.randn(6, 3), torch.arange(6) % 4, num_samples, 3 * torch.randn(4, 3), num_context=4)


def test_a_plain_step_is_a_step_of_adam_on_the_cross_entropy():
    given = work()
    net = copy.deepcopy(given.net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    act = plain_step(given)
    for _ in range(3):
        act()
        optimizer.zero_grad()
        F.cross_entropy(net(given.x), given.y).backward()
        optimizer.step()
    for ours, theirs in zip(given.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_longer_step_sees_the_context_points_as_further_examples():
    torch.manual_seed(0)
    given, seen = work(), []
    given.net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    longer_step(given)()
    (x,) = seen
    assert torch.equal(x[:6], given.x) and len(x) == 10
    assert {tuple(row) for row in x[6:].tolist()} == {tuple(row) for row in given.context.tolist()}


def test_a_forward_pass_is_that_of_the_network_in_eval_mode():
    given = work(nn.Dropout(0.5))
    outputs = plain_forward(given)()
    torch.testing.assert_close(outputs, given.net.eval()(given.x))
    assert not outputs.requires_grad


def test_a_network_with_several_inputs_gets_them_by_name():
    class Sum(nn.Module):
        def forward(self, first, second):
            return first - second

    x = Bundle({"second": torch.ones(2), "first": torch.zeros(2)})
    assert call(Sum(), x).tolist() == [-1.0, -1.0]


def test_dropout_in_a_loop_averages_random_passes():
    torch.manual_seed(0)
    act = dropout_prediction(work(nn.Dropout(0.5), num_samples=20))
    first, second = act(), act()
    torch.testing.assert_close(first.sum(1), torch.ones(6))
    assert not torch.equal(first, second)


def test_dropout_by_hand_drops_the_inputs_of_all_layers_but_the_first():
    torch.manual_seed(0)
    given = work(nn.Linear(8, 8), nn.ReLU())
    net = copy.deepcopy(given.net)
    act = dropout_step(given)
    torch.manual_seed(1)
    outputs = given.outputs()
    torch.manual_seed(1)
    hidden = net[3](net[2](F.dropout(net[1](net[0](given.x)), 0.1)))
    torch.testing.assert_close(outputs, net[4](F.dropout(hidden, 0.1)))
    before = given.net[0].weight.detach().clone()
    act()
    assert not torch.equal(before, given.net[0].weight)


def test_dropout_by_hand_is_the_networks_own_if_it_has_any():
    given = work(nn.Dropout(0.5))
    dropout_step(given)
    assert not any(layer._forward_pre_hooks for layer in given.net.modules())
