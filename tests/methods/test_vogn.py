import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.func import functional_call

import fsvi
from fsvi.errors import InvalidInputError
from fsvi_cases import begun, fix_noise, flat_mean, loss_of, stepped

LABELS = torch.tensor([0, 1, 1, 0])
NOISE = 0.5


class Spare(nn.Module):
    """A layer that nothing uses, and one that computes the outputs."""

    def __init__(self):
        super().__init__()
        self.spare, self.head = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x)


def one_by_one(method, values, x, y):
    """Σ gᵢ/n and Σ gᵢ²/n at flat parameters `values`, by a backward pass for each example."""
    layout = method.posterior.layout
    rows = []
    for i in range(len(x)):
        theta = values.detach().clone().requires_grad_()
        outputs = functional_call(method.net, layout.views(theta), (x[i : i + 1],))
        rows.append(torch.autograd.grad(method.likelihood.nll(outputs, y[i : i + 1]), theta)[0])
    rows = torch.stack(rows)
    return rows.mean(0), rows.square().mean(0)


# The update -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, dict(kl_weight=fsvi.Tempered(0.5), damping=0.2, prior_variance=0.4)])
def test_three_steps_are_those_of_the_algorithm(make, settings):
    net, x = make("mlp")
    method = fsvi.VOGN(net, fsvi.Categorical(), num_samples=2, momentum=0.8, scale_rate=0.1, **settings)
    begun(method, x, LABELS, 50).train()
    size = 50
    temperature = 1.0 if method.kl_weight is None else method.kl_weight.temperature
    prior = temperature / (method.prior_variance * size)
    noises = torch.randn(6, len(method.scale), dtype=torch.float64)
    fix_noise(method, *noises)
    mean = flat_mean(method.posterior)
    momentum = torch.zeros_like(mean)
    _, scale = one_by_one(method, mean, x, LABELS)
    optimizer = method.own_optimizer(0.3)
    for pair in (torch.zeros_like(noises[:2]), *noises[:4].split(2)):  # the first batch is evaluated at the mean
        std = (size * (scale + prior + method.damping)) ** -0.5
        moments = [one_by_one(method, mean + std * noise, x, LABELS) for noise in pair]
        g, h = (torch.stack(parts).mean(0) for parts in zip(*moments, strict=True))
        momentum = 0.8 * momentum + g + prior * mean
        scale = (1 - temperature * 0.1) * scale + 0.1 * h
        mean = mean - 0.3 * momentum / (scale + prior + method.damping)
        optimizer.zero_grad()
        stepped(method, x, LABELS)
        optimizer.step()
        method.after_step()
    torch.testing.assert_close(method.scale.detach(), scale)
    torch.testing.assert_close(flat_mean(method.posterior), mean)
    std = (size * (scale + prior + method.damping)) ** -0.5
    torch.testing.assert_close(method.posterior.log_std.detach(), std.log())


@pytest.mark.parametrize(("tempering", "damping"), [(1.0, 0.0), (0.7, 0.05)])
def test_on_a_quadratic_it_reaches_the_stationary_mean_and_variance(tempering, damping):
    """gᵢ is linear and gᵢ² quadratic in ε, so the 2P points ±√P eₖ give their expectations without sampling error."""
    num, delta = 20, 3.0
    x = torch.randn(num, 2, dtype=torch.float64)
    y = x @ torch.tensor([[0.7], [-0.4]], dtype=torch.float64) + NOISE * torch.randn(num, 1, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(2, 1)).double()
    settings = dict(kl_weight=fsvi.Tempered(tempering), damping=damping, prior_variance=1 / delta)
    method = fsvi.VOGN(net, fsvi.Gaussian(NOISE), num_samples=6, momentum=0.5, scale_rate=0.3, **settings)
    points = math.sqrt(3) * torch.eye(3, dtype=torch.float64)
    fix_noise(method, *points, *-points)
    fsvi.fit(method, (x, y), epochs=120, batch_size=num, lr=0.2, schedule=None)

    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    prior = tempering * delta / num
    gram = design.T @ design / NOISE**2 / num
    mean = torch.linalg.solve(gram + prior * torch.eye(3, dtype=torch.float64), design.T @ y / NOISE**2 / num)
    residuals = (design @ mean - y).square()
    scale = torch.ones(3, dtype=torch.float64)
    for _ in range(200):
        variance = 1 / (num * (scale + prior + damping))
        squares = design.square() * (residuals + design.square() @ variance[:, None]) / NOISE**4
        scale = squares.mean(0) / tempering
    torch.testing.assert_close(flat_mean(method.posterior), mean.flatten(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close((2 * method.posterior.log_std).exp().detach(), variance, rtol=1e-4, atol=1e-8)


def test_the_loss_is_the_expected_negative_log_likelihood_and_the_tempered_kl(make):
    net, x = make("mlp")
    method = fsvi.VOGN(net, fsvi.Categorical(), prior_variance=0.4, kl_weight=fsvi.Tempered(0.5))
    begun(method, x, LABELS, 50).train()
    method.posterior.log_std.data.normal_(-1)
    noise = torch.randn_like(method.scale)
    fix_noise(method, noise)
    mean, std = flat_mean(method.posterior), method.posterior.log_std.detach().exp()
    outputs = functional_call(net, method.posterior.layout.views(mean + std * noise), (x,))
    kl = kl_divergence(Normal(mean, std), Normal(torch.zeros_like(mean), math.sqrt(0.4))).sum()
    expected = -Categorical(logits=outputs).log_prob(LABELS).mean() + 0.5 / 50 * kl
    method.scale.fill_(1.0)
    with torch.no_grad():
        torch.testing.assert_close(loss_of(method, x, LABELS), expected)
    torch.testing.assert_close(sum(stepped(method, x, LABELS).values()).detach(), expected.detach())


# BatchNorm and points -------------------------------------------------------------------------------------------------


def test_through_batch_norm_in_training_the_mean_gradient_is_exact_and_statistics_are_updated_once(make):
    net, x = make("batch_norm")
    method, plain = fsvi.VOGN(net, fsvi.Categorical()), fsvi.MAP(net, fsvi.Categorical(), prior_variance=None)
    begun(method, x, LABELS)
    method.scale.fill_(1.0)
    fix_noise(method, torch.zeros_like(method.scale))
    for each in (method, plain):
        each.train()
        stepped(each, x, LABELS)
    for own, other in zip(method.net.parameters(), plain.net.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
    for own, other in zip(method.net.buffers(), plain.net.buffers(), strict=True):
        torch.testing.assert_close(own, other)


def test_batch_norm_and_recurrent_layers_are_points_and_learn(make):
    for name, points in (("batch_norm", {"1.weight", "1.bias"}), ("gru", None)):
        net, x = make(name)
        method = fsvi.VOGN(net, fsvi.Categorical())
        names = points or {f"rnn.{n}" for n, _ in net.rnn.named_parameters()}
        assert method.posterior.stds().keys() == {n for n, _ in net.named_parameters()} - names
        fsvi.fit(method, (x, LABELS), epochs=2)
        means = dict(method.net.named_parameters())
        assert all(not torch.equal(means[n], p) for n, p in net.named_parameters())


def test_a_layer_that_is_not_called_keeps_to_the_prior(make):
    _, x = make("mlp")
    method = fsvi.VOGN(Spare().double(), fsvi.Categorical(), prior_variance=0.3, damping=0.0)
    fsvi.fit(method, (x, LABELS), epochs=3)
    torch.testing.assert_close(method.posterior.stds()["spare.bias"], torch.full((2,), 0.3**0.5, dtype=torch.float64))


# The run --------------------------------------------------------------------------------------------------------------


def test_a_batch_that_overflows_stops_training_before_the_scale_is_spoiled(make):
    net, x = make("mlp")
    method = fsvi.VOGN(net, fsvi.Categorical())
    method.check_inputs(x)
    with torch.no_grad():
        for p in method.net.parameters():
            p.fill_(1e308)
    with pytest.raises(fsvi.errors.NonFiniteLossError):
        fsvi.fit(method, (x, LABELS), epochs=1)
    assert not bool(method.scale.any())


def test_a_scale_that_would_forget_more_than_all_is_refused(make):
    net, x = make("mlp")
    with pytest.raises(InvalidInputError, match="scale_rate"):
        begun(fsvi.VOGN(net, fsvi.Categorical(), scale_rate=0.9, kl_weight=fsvi.Tempered(2.0)), x, LABELS)


def test_a_network_without_trainable_layers_is_refused(make):
    net, _ = make("mlp")
    with pytest.raises(InvalidInputError, match="trainable"):
        fsvi.VOGN(net.requires_grad_(False), fsvi.Categorical())


def test_curvature_is_summed_in_full_precision():
    """In bf16, ĝ and ĥ are close to those in float32 and have the type of the parameters."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    method = fsvi.VOGN(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), fsvi.Categorical())
    shift = torch.zeros_like(method.scale)
    _, *exact = method._differentiate(x, y, shift)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, *rough = method._differentiate(x, y, shift)
    for one, other in zip(exact, rough, strict=True):
        assert other.dtype == torch.float32
        torch.testing.assert_close(other, one, rtol=0, atol=0.05 * float(one.abs().max()))
    fsvi.fit(method, (x, y), epochs=2, precision="bf16", progress=False)
    assert bool(method.scale.isfinite().all())
