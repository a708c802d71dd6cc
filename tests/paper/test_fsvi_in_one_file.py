"""FSVI written by hand in one file is the oracle of `fsvi.FSVI`."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

import fsvi
from fsvi.functions.divergences import gaussian_kl
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.posteriors.mean_field import MeanField

FILE = Path(__file__).parents[2] / "docs" / "gallery" / "fsvi_in_one_file.py"


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("fsvi_in_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 4))


def test_the_divergence_is_that_of_the_library(one_file):
    torch.manual_seed(0)
    mean, features, variance = torch.randn(5, 3), torch.randn(5, 7), torch.rand(3, 7)
    zeros = torch.zeros(5, 3, dtype=torch.float64)
    prior = FunctionGaussian(zeros, zeros[:, :0], zeros[:1, :0], 0.5)
    expected = gaussian_kl(FunctionGaussian(mean, features, variance), prior, 1e-2)
    found = one_file.FSVI(network(), None, 10).kl(mean, features, variance)
    torch.testing.assert_close(found, expected.float())


def test_the_loss_and_its_gradient_are_those_of_the_library(one_file, monkeypatch):
    """With the same random numbers, and a divergence that weighs as much as the likelihood."""
    torch.manual_seed(0)
    x, y, points, net = torch.randn(6, 3), torch.arange(6) % 4, 3 * torch.randn(4, 3), network()
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Dataset(points), num_context=4)
    method.num_data = 10
    method.begin(x, y)
    method.train()
    q = method.posterior
    with torch.no_grad():
        q.log_std.add_(torch.randn_like(q.log_std))
    noise = torch.randn_like(q.log_std)
    monkeypatch.setattr(MeanField, "noise", lambda self, generator=None: noise)
    terms = method(x, y)
    sum(terms.values()).backward()

    by_hand = one_file.FSVI(net, lambda: points, 10)
    logs, own = [*by_hand.feature_logs, *by_hand.head_logs], list(q.layout.views(noise).values())
    with torch.no_grad():
        for log, value in zip(logs, q.layout.views(q.log_std).values(), strict=True):
            log.copy_(value)
    numbers = iter(own)
    monkeypatch.setattr(torch, "randn_like", lambda log: next(numbers))
    loss = by_hand.loss(x, y)
    loss.backward()
    torch.testing.assert_close(loss.detach(), sum(terms.values()).detach().float())
    means = dict(method.net.named_parameters())
    for name, mean in net.named_parameters():
        torch.testing.assert_close(mean.grad, means[name].grad, rtol=1e-4, atol=1e-6)
    for log, gradient in zip(logs, q.layout.views(q.log_std.grad).values(), strict=True):
        torch.testing.assert_close(log.grad, gradient, rtol=1e-4, atol=1e-6)
