"""Plain PyTorch is what it says, and FSVI's loss written by hand is FSVI's."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fsvi
from fsvi.experiments.bench import by_hand
from fsvi.experiments.bench.by_hand import (
    Work,
    call,
    conditional_loss,
    dropout_prediction,
    dropout_step,
    function_kl,
    jvp_loss,
    last_layer_loss,
    plain_forward,
    plain_step,
)
from fsvi.functions.gaussian import FunctionGaussian, gaussian_kl
from fsvi.inputs import Bundle


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
    given = work()
    net = copy.deepcopy(given.net)
    act = dropout_step(given)
    torch.manual_seed(1)
    outputs = given.outputs()
    torch.manual_seed(1)
    torch.testing.assert_close(outputs, net[2](F.dropout(net[1](net[0](given.x)), 0.1)))
    before = given.net[0].weight.detach().clone()
    act()
    assert not torch.equal(before, given.net[0].weight)


def test_the_divergence_by_hand_is_that_of_the_library():
    torch.manual_seed(0)
    mean, features, variance = torch.randn(5, 3), torch.randn(5, 7), torch.rand(3, 7)
    zeros = torch.zeros(5, 3, dtype=torch.float64)
    prior = FunctionGaussian(zeros, zeros[:, :0], zeros[:1, :0], 0.5)
    expected = gaussian_kl(FunctionGaussian(mean, features, variance), prior, 1e-2)
    torch.testing.assert_close(function_kl(mean, features, variance), expected.float())


@pytest.mark.parametrize(
    ("make_loss", "settings"),
    [
        (last_layer_loss, {"stochastic": "last_layer"}),
        (conditional_loss, {"linearize": "conditional"}),
        (jvp_loss, {"linearize": "jvp"}),
    ],
)
def test_the_loss_by_hand_is_that_of_the_library(make_loss, settings, monkeypatch):
    """Every set has all context points, the divergence weighs as much as the likelihood, and draws are averaged out."""
    monkeypatch.setattr(by_hand, "NUM_DATA", 10)
    monkeypatch.setattr(by_hand, "_LOG_STD", -1.5)
    torch.manual_seed(0)
    given = work()
    method = fsvi.FSVI(given.net, fsvi.Categorical(), fsvi.contexts.Dataset(given.context), num_context=4, **settings)
    method.begin(given.x, 10)
    method.posterior.set_stds(dict.fromkeys(method.posterior.layout.shapes, math.exp(-1.5)))
    loss = make_loss(given)
    rounds = 1_000
    with torch.no_grad():
        ours = torch.stack([sum(method.terms(given.x, given.y).values()) for _ in range(rounds)])
        theirs = torch.stack([loss() for _ in range(rounds)])
    error = ((ours.var() + theirs.var()) / rounds).sqrt()
    assert abs(ours.mean() - theirs.mean()) < 4 * error
    assert error < 0.01 * ours.mean()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), nn.Dropout(0.1)])
def test_networks_that_fsvi_by_hand_was_not_written_for_are_refused(layer):
    with pytest.raises(ValueError, match="not written for"):
        last_layer_loss(work(layer))
