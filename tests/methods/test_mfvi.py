import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

import fsvi
from fsvi_cases import fix_noise, loss_of

LABELS = torch.tensor([0, 1, 1, 0])


def test_the_kl_equals_that_of_torch_distributions(make):
    """Over random parameters: the scale and shift of BatchNorm are points."""
    net, x = make("batch_norm")
    method = fsvi.MFVI(net, fsvi.Categorical(), prior_variance=0.3, kl_weight=1.0)
    with torch.no_grad():
        method.posterior.log_std.normal_(-1, 0.5)
    prior = Normal(torch.zeros((), dtype=torch.float64), math.sqrt(0.3))
    means, stds = dict(method.net.named_parameters()), method.posterior.stds()
    reference = sum(kl_divergence(Normal(means[name], std), prior).sum() for name, std in stds.items())
    torch.testing.assert_close(method(x, LABELS)["kl"], reference)


@pytest.mark.parametrize("num_samples", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "tied_head"])
def test_the_gradient_is_that_of_plain_operations(make, name, num_samples):
    """Of −log p(y | mean + exp(log_std) ε) and of torch's KL, by autograd alone."""
    net, x = make(name)
    method = fsvi.MFVI(net, fsvi.Categorical(), prior_variance=0.3, num_samples=num_samples, kl_weight=0.1)
    q = method.posterior
    with torch.no_grad():
        q.log_std.normal_(-1, 0.5)
    learned = [*method.net.parameters(), q.log_std]
    noises = [torch.randn_like(q.log_std) for _ in range(num_samples)]
    fix_noise(method, *noises)
    found = torch.autograd.grad(loss_of(method, x, LABELS), learned)
    means, stds = q.means(), q.layout.views(q.log_std.exp())
    draws = [
        {key: mean + stds[key] * noise[key] for key, mean in means.items()} for noise in map(q.layout.views, noises)
    ]
    f = torch.stack([torch.func.functional_call(method.net, params, (x,)) for params in draws])
    prior = Normal(torch.zeros((), dtype=torch.float64), math.sqrt(0.3))
    kl = sum(kl_divergence(Normal(mean, stds[key]), prior).sum() for key, mean in means.items())
    expected = torch.autograd.grad(fsvi.Categorical().nll(f, LABELS) + 0.1 * kl, learned)
    torch.testing.assert_close(found, expected)


def test_without_noise_it_is_the_network_itself(make):
    net, x = make("batch_norm")
    method = fsvi.MFVI(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(1e-12))
    expected = fsvi.Categorical().nll(net(x), LABELS)
    torch.testing.assert_close(method(x, LABELS)["nll"], expected, rtol=1e-6, atol=1e-6)
