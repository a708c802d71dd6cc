import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import fsvi
from fsvi.posteriors.layer_modes import LocalReparametrization
from fsvi_cases import loss_of

LABELS = torch.tensor([0, 1, 1, 0])


def test_the_kl_equals_that_of_torch_distributions(make):
    net, _ = make("batch_norm")
    method = fsvi.MFVI(net, fsvi.Categorical(), prior_variance=0.3)
    with torch.no_grad():
        method.posterior.log_std.normal_(-1, 0.5)
    prior = Normal(torch.zeros((), dtype=torch.float64), math.sqrt(0.3))
    means, stds = dict(method.net.named_parameters()), method.posterior.stds()
    reference = sum(kl_divergence(Normal(means[name], std), prior).sum() for name, std in stds.items())
    torch.testing.assert_close(method.kl([]), reference)


@pytest.mark.parametrize("num_samples", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "tied_head"])
def test_the_gradient_is_that_of_the_terms(make, name, num_samples):
    net, x = make(name)
    method = fsvi.MFVI(net, fsvi.Categorical(), prior_variance=0.3, num_samples=num_samples, kl_weight=0.1)
    with torch.no_grad():
        method.posterior.log_std.normal_(-1, 0.5)
    learned = [p for p in method.posterior.parameters() if p.numel()]
    torch.manual_seed(3)
    terms = method(x, LABELS)
    expected = torch.autograd.grad(0.7 * (terms["nll"] + terms["kl"]), learned)
    torch.manual_seed(3)
    values = method.backward(x, LABELS, 0.7)
    torch.testing.assert_close({name: value.detach() for name, value in terms.items()}, values)
    torch.testing.assert_close([p.grad for p in learned], list(expected))


@pytest.mark.parametrize("name", ["mlp", "depthwise", "batch_norm", "transformer", "lstm", "tied_head"])
def test_local_reparametrisation_trains_any_network(make, name):
    net, x = make(name)
    method = fsvi.MFVI(net, fsvi.Categorical(), local_reparametrization=True, num_samples=2)
    method(x, LABELS)["nll"].backward()
    q = method.posterior
    for gradient in (q.mean.grad, q.log_std.grad):
        assert gradient.isfinite().all()
        assert all((part != 0).any() for part in q.layout.views(gradient).values())


def test_local_reparametrisation_is_used_when_asked_for_in_training_alone(make, monkeypatch):
    net, x = make("mlp")
    calls = []
    layer = LocalReparametrization.layer
    monkeypatch.setattr(LocalReparametrization, "layer", lambda *args, **kw: calls.append(0) or layer(*args, **kw))
    for local, expected in [(False, 0), (True, 2 * 3)]:
        method = fsvi.MFVI(net, fsvi.Categorical(), local_reparametrization=local, num_samples=3)
        method.predict(x, num_samples=2)
        loss_of(method, x, LABELS)
        assert len(calls) == expected


def test_without_noise_both_ways_are_the_network_itself(make):
    net, x = make("batch_norm")
    expected = fsvi.Categorical().nll(net(x), LABELS)
    for local in (False, True):
        method = fsvi.MFVI(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(1e-12), local_reparametrization=local)
        torch.testing.assert_close(method(x, LABELS)["nll"], expected, rtol=1e-6, atol=1e-6)


def test_a_small_cnn_learns_with_the_defaults():
    """Bars that are vertical or horizontal, in noise."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    bars = torch.zeros(120, 1, 8, 8)
    bars[:, :, :, 3:5] = 1
    x = torch.where(y[:, None, None, None] == 0, bars, bars.mT) + 0.7 * torch.randn(bars.shape, generator=generator)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 2))
    method = fsvi.MFVI(net, fsvi.Categorical())
    fsvi.fit(method, (x[:80], y[:80]), epochs=30, batch_size=40)
    assert (method.predict(x[80:], num_samples=20).labels() == y[80:]).float().mean() > 0.9
