"""Plain PyTorch is what it says, and FSVI's loss written by hand is FSVI's."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fsvi
from fsvi.functions.gaussian import FunctionGaussian, gaussian_kl
from fsvi.inputs import Bundle
from fsvi.posteriors.mean_field import MeanField
from paper.bench import by_hand
from paper.bench.by_hand import (
    Work,
    call,
    conditional_loss,
    dropout_prediction,
    dropout_step,
    function_kl,
    jvp_loss,
    last_layer_loss,
    longer_step,
    plain_forward,
    plain_step,
)
from paper.bench.peers import STEPS


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


def test_the_divergence_by_hand_is_that_of_the_library():
    torch.manual_seed(0)
    mean, features, variance = torch.randn(5, 3), torch.randn(5, 7), torch.rand(3, 7)
    zeros = torch.zeros(5, 3, dtype=torch.float64)
    prior = FunctionGaussian(zeros, zeros[:, :0], zeros[:1, :0], 0.5)
    expected = gaussian_kl(FunctionGaussian(mean, features, variance), prior, 1e-2)
    torch.testing.assert_close(function_kl(mean, features, variance), expected.float())


CASES = [
    (last_layer_loss, {"stochastic": "last_layer"}),
    (conditional_loss, {"linearize": "conditional"}),
    (jvp_loss, {"linearize": "jvp"}),
]


@pytest.mark.parametrize("layers", [(), (nn.BatchNorm1d(8), nn.Dropout(0.5))], ids=["joined", "two passes"])
@pytest.mark.parametrize(("make_loss", "settings"), CASES)
def test_the_loss_by_hand_and_its_gradient_are_those_of_the_library(make_loss, settings, layers, monkeypatch):
    """With the same random numbers, and a divergence that weighs as much as the likelihood."""
    monkeypatch.setattr(by_hand, "NUM_DATA", 10)
    monkeypatch.setattr(by_hand, "_LOG_STD", -1.5)
    torch.manual_seed(0)
    given = work(*copy.deepcopy(layers))
    method = fsvi.FSVI(given.net, fsvi.Categorical(), fsvi.contexts.Dataset(given.context), num_context=4, **settings)
    method.begin(given.x, 10)
    method.train()
    q = method.posterior
    q.set_stds(dict.fromkeys(q.layout.shapes, math.exp(-1.5)))
    noise = torch.randn_like(q.mean)
    monkeypatch.setattr(MeanField, "noise", lambda self, generator=None: noise)
    own = q.layout.views(noise)
    monkeypatch.setattr(
        by_hand._RandomNetwork, "draw", lambda self: {n: log.exp() * own[n] for n, log in self.logs.items()}
    )
    names = [name for name, _ in given.net.named_parameters()]
    torch.manual_seed(1)
    terms = method.backward(given.x, given.y)
    loss = make_loss(given)
    torch.manual_seed(1)
    value = loss()
    value.backward()
    torch.testing.assert_close(value.detach(), sum(terms.values()).detach().float())
    means = {**q.layout.views(q.mean.grad), **q.point_layout.views(q.point.grad)}
    for name in names:
        torch.testing.assert_close(given.net.get_parameter(name).grad, means[name], rtol=1e-4, atol=1e-6)
    logs = list(q.layout.views(q.log_std.grad).values())
    for number, log_std in enumerate(logs):
        found = given.net.get_parameter(f"log_std_{number}").grad
        torch.testing.assert_close(found, log_std, rtol=1e-4, atol=1e-6)
    assert len(list(given.net.parameters())) == len(names) + len(logs)


@pytest.mark.parametrize(("make_loss", "settings"), CASES)
def test_a_step_by_hand_moves_every_parameter_and_standard_deviation(make_loss, settings):
    torch.manual_seed(0)
    given = work()
    act = STEPS[f"{settings.get('stochastic', settings.get('linearize'))} by hand"].make(given)
    before = [parameter.detach().clone() for parameter in given.net.parameters()]
    assert len(before) == 6 if make_loss is last_layer_loss else 8
    act()
    assert not any(torch.equal(old, new) for old, new in zip(before, given.net.parameters(), strict=True))
