"""FSVI around a trained network: the mean stays, the variance follows data and context."""

import math

import pytest
import torch
from torch import nn

import fsvi
from fsvi.methods.fixed_mean import FixedMeanFSVI, probit


def trained(x, y):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    method = fsvi.MAP(net, fsvi.Categorical(), prior_variance=None)
    fsvi.fit(method, (x, y), epochs=60, batch_size=50, lr=0.02, progress=False)
    return method.net


@pytest.fixture(scope="module")
def fitted():
    x, y = fsvi.data.two_moons(200)
    far = 6 + torch.rand(500, 2)
    method = FixedMeanFSVI(
        trained(x, y),
        fsvi.Categorical(),
        fsvi.contexts.Dataset(far),
        num_features=64,
        prior_variance=9.0,
        kl_weight=1.0,
    )
    before = method.net(x).detach()
    fsvi.fit(method, (x, y), epochs=30, batch_size=50, lr=0.1, progress=False)
    return method, x, far, before


def test_outputs_of_the_network_stay(fitted):
    method, x, _, before = fitted
    assert torch.equal(method.net(x), before)
    assert torch.equal(method.predict(x).mean.argmax(1), before.argmax(1))


def test_the_variance_is_the_priors_at_the_context_and_smaller_on_the_data(fitted):
    method, x, far, _ = fitted
    with torch.no_grad():
        at_context, on_data = method.moments(far)[1].mean(), method.moments(x)[1].mean()
    assert at_context == pytest.approx(9.0, rel=0.15)
    assert on_data < 0.5 * at_context


def test_the_loss_is_the_formula():
    torch.manual_seed(0)
    seen = torch.randn(50, 3) @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    x, y = 2 * seen[:7] + 1, torch.randint(2, (7,))
    net = nn.Sequential(nn.Identity(), nn.Linear(3, 2))
    context = fsvi.contexts.Dataset(x[:1])
    method = FixedMeanFSVI(net, fsvi.Categorical(), context, num_features=8, prior_variance=2.0, kl_weight=0.3)
    method.begin(seen, y)
    with torch.no_grad():
        method.far.copy_(torch.tensor([-1.0, 0.5]))
        method.slope.copy_(torch.linspace(-1, 1, 8))

    def scaled(rows):
        return (rows - seen.mean(0)) / seen.std(0, correction=0)

    def logs(rows):  # of the Mahalanobis distance, from a Gaussian's log density
        spread = scaled(seen).T @ scaled(seen) / 50 + 3 / 50 * torch.eye(3)
        q = torch.distributions.MultivariateNormal(torch.zeros(3), spread)
        return (2 * (q.log_prob(torch.zeros(3)) - q.log_prob(scaled(rows)))).log() / 2

    d = (logs(x) - logs(seen).mean()) / logs(seen).std(correction=0)
    waves = method.features(scaled(x))
    rise = 3 * (waves @ torch.linspace(-1, 1, 8))
    variance = waves.square() @ method.log_variance.exp() + 2 * torch.sigmoid(-1 + math.exp(0.5) * d + rise)
    logits = net(x) / (1 + math.pi / 8 * variance).sqrt()[:, None]
    kl = 0.5 * (variance[0] / 2 - 1 - (variance[0] / 2).log())
    terms = method(x, y)
    torch.testing.assert_close(terms["nll"], nn.functional.cross_entropy(logits, y))
    torch.testing.assert_close(terms["kl"], 0.3 * kl)


def test_far_away_the_variance_is_at_least_the_priors(fitted):
    method, features = fitted[0], torch.randn(20, 16)
    with torch.no_grad():
        near, away = method.variances(features), method.variances(1e4 * features)
    assert bool((away >= 0.99 * method.prior_variance).all()) and bool((near < away).all())


def test_for_two_classes_the_probit_is_close_to_the_integral():
    torch.manual_seed(0)
    mean, variance = torch.tensor([[1.0, -0.5]]), torch.tensor([[2.0, 2.0]])
    draws = mean + variance.sqrt() * torch.randn(200_000, 2)
    torch.testing.assert_close(probit(mean, variance).softmax(1)[0], draws.softmax(1).mean(0), rtol=0, atol=0.05)


def test_numbers_have_the_variance_of_function_and_noise():
    net = nn.Sequential(nn.Identity(), nn.Linear(2, 1))
    method = FixedMeanFSVI(net, fsvi.Gaussian(0.5), num_features=8)
    x = torch.randn(4, 2)
    predicted = method.predict(x, num_samples=4000)
    expected = method.moments(x)[1].detach() + 0.25
    torch.testing.assert_close(predicted.variance.float(), expected, rtol=0.1, atol=0)


@pytest.mark.parametrize("kind", [FixedMeanFSVI, fsvi.FMGP])
def test_missing_numbers_do_not_count_and_a_noise_is_learned(kind):
    torch.manual_seed(0)
    method = kind(nn.Sequential(nn.Identity(), nn.Linear(2, 2)), fsvi.Gaussian(0.5, learn_noise=True))
    x, y = torch.randn(30, 2), torch.randn(30, 2)
    method.begin(*method.check_batch(x, y))
    y[20:], y[3, 1] = math.nan, math.nan
    mean, variance = method.moments(x[:20])
    normal = torch.distributions.Normal(mean, (variance + 0.25).sqrt(), validate_args=False)
    nll = method.predictive_nll(x, y)
    torch.testing.assert_close(nll, -normal.log_prob(y[:20]).nan_to_num(0.0).sum() / 20)
    nll.backward()
    assert method.likelihood.log_noise.grad.abs().min() > 0


@pytest.mark.parametrize("kind", [FixedMeanFSVI, fsvi.FMGP])
def test_many_training_inputs_do_not_go_through_the_network_at_once(kind):
    class Counting(nn.Identity):
        most = 0

        def forward(self, x):
            Counting.most = max(Counting.most, len(x))
            return x

    x = torch.randn(1000, 3)
    method = kind(nn.Sequential(Counting(), nn.Linear(3, 2)), fsvi.Categorical())
    method.begin(x, torch.zeros(1000, dtype=torch.long))
    assert Counting.most <= 256
    torch.testing.assert_close(method.center, x.mean(0))
