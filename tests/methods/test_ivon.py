"""IVON's update by hand, and on a quadratic loss whose posterior is known."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import fsvi
from fsvi_cases import begun, fix_noise, flat_mean, stepped

LABELS = torch.tensor([0, 1, 1, 0])
NOISE = 0.5


# The update -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, dict(kl_weight=fsvi.Tempered(0.5), prior_variance=0.4, clip=0.3)])
def test_three_steps_are_those_of_the_algorithm(make, settings):
    net, x = make("mlp")
    method = fsvi.IVON(
        net, fsvi.Categorical(), num_samples=2, momentum=0.8, scale_rate=0.1, initial_scale=0.2, **settings
    )
    begun(method, x, LABELS, 50)
    size = 50 / (1.0 if method.kl_weight is None else method.kl_weight.temperature)
    delta, clip = 1 / (size * method.prior_variance), method.clip or math.inf
    noises = torch.randn(6, flat_mean(method.posterior).numel(), dtype=torch.float64)
    fix_noise(method, *noises)
    mean = flat_mean(method.posterior).clone()
    g, h = torch.zeros_like(mean), torch.full_like(mean, 0.2)
    optimizer = method.own_optimizer(0.3)

    def gradient(values):
        theta = values.clone().requires_grad_()
        outputs = functional_call(net, method.posterior.layout.views(theta), (x,))
        return torch.autograd.grad(method.likelihood.nll(outputs, LABELS), theta)[0]

    for step, pair in enumerate(noises.split(2), start=1):
        std = (size * (h + delta)) ** -0.5
        gradients = [gradient(mean + std * noise) for noise in pair]
        g_hat = sum(gradients) / 2
        h_hat = sum(each * noise / std for each, noise in zip(gradients, pair, strict=True)) / 2
        g = 0.8 * g + 0.2 * g_hat
        h = 0.9 * h + 0.1 * h_hat + 0.5 * 0.1**2 * (h - h_hat) ** 2 / (h + delta)
        mean = mean - 0.3 * ((g / (1 - 0.8**step) + delta * mean) / (h + delta)).clamp(-clip, clip)
        stepped(method, x, LABELS)
        optimizer.step()
        method.after_step()
    torch.testing.assert_close(method.scale.detach(), h)
    torch.testing.assert_close(flat_mean(method.posterior), mean)
    torch.testing.assert_close(method.posterior.stds()["0.bias"], (size * (h + delta))[15:20] ** -0.5)


@pytest.mark.parametrize("tempering", [1.0, 0.5])
def test_on_a_quadratic_it_reaches_the_best_mean_field_posterior(tempering):
    """ĝ is linear in ε, so the 2P points ±√P eₖ give the expectations of ĝ and ĥ without sampling error."""
    num, variance = 20, 1 / 3
    x = torch.randn(num, 2, dtype=torch.float64)
    y = x @ torch.tensor([[0.7], [-0.4]], dtype=torch.float64) + NOISE * torch.randn(num, 1, dtype=torch.float64)
    settings = dict(prior_variance=variance, kl_weight=fsvi.Tempered(tempering), momentum=0.5, scale_rate=0.2)
    method = fsvi.IVON(nn.Sequential(nn.Linear(2, 1)).double(), fsvi.Gaussian(NOISE), num_samples=6, **settings)
    points = math.sqrt(3) * torch.eye(3, dtype=torch.float64)
    fix_noise(method, *points, *-points)
    fsvi.fit(method, (x, y), epochs=200, batch_size=num, lr=0.2, schedule=None)

    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    precision = design.T @ design / (tempering * NOISE**2) + torch.eye(3, dtype=torch.float64) / variance
    mean = torch.linalg.solve(precision, design.T @ y / (tempering * NOISE**2)).flatten()
    curvature = (design.T @ design).diagonal() / (num * NOISE**2)
    torch.testing.assert_close(method.scale.detach(), curvature, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(flat_mean(method.posterior), mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close((-2 * method.posterior.log_std).exp().detach(), precision.diagonal(), rtol=1e-6, atol=0)


def test_with_random_draws_the_scale_tends_to_the_curvature():
    num = 30
    x = torch.randn(num, 2, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    method = fsvi.IVON(nn.Sequential(nn.Linear(2, 1)).double(), fsvi.Gaussian(NOISE), scale_rate=0.01)
    fsvi.fit(method, (x, y), epochs=800, batch_size=num, lr=0.05, schedule=None)
    curvature = torch.cat([x.square().mean(0), x.new_ones(1)]) / NOISE**2
    torch.testing.assert_close(method.scale.detach(), curvature, rtol=0.25, atol=0)


def test_the_scale_stays_positive_where_the_curvature_is_negative(make):
    net, x = make("mlp")
    method = begun(fsvi.IVON(net, fsvi.Categorical(), scale_rate=0.9), x, LABELS)
    optimizer = method.own_optimizer(0.1)
    for curvature in (-3.0, -100.0, -0.5):
        method.posterior.log_std.grad = curvature * (2 * method.posterior.log_std.detach()).exp()
        optimizer.step()
        assert bool((method.scale + 1 / 4 > 0).all()) and bool(method.posterior.log_std.isfinite().all())


# Points ---------------------------------------------------------------------------------------------------------------


def test_every_layer_is_random_but_batch_norm_which_learns_too(make):
    for name, points in (("batch_norm", {"1.weight", "1.bias"}), ("gru", set())):
        net, x = make(name)
        method = fsvi.IVON(net, fsvi.Categorical())
        assert {name for name, _ in net.named_parameters()} - set(method.posterior.means()) == points
        fsvi.fit(method, (x, LABELS), epochs=2)
        means = dict(method.net.named_parameters())
        assert all(not torch.equal(means[n], p) for n, p in net.named_parameters())
