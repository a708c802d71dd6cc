import pytest
import torch
from torch import distributions as D

import fsvi
from likelihood_cases import N, Q, bound, expected_curvature


@pytest.fixture(params=[(), (4,)], ids=["one", "draws"])
def f(request):
    """Outputs (n, Q), or (draws, n, Q)."""
    return torch.randn(*request.param, N, Q, dtype=torch.float64)


@pytest.fixture
def y():
    return torch.randn(N, Q, dtype=torch.float64)


def test_heteroscedastic_outputs_are_means_then_log_variances(y):
    f = torch.randn(4, N, 2 * Q, dtype=torch.float64)
    likelihood = bound(fsvi.Gaussian(heteroscedastic=True), 2 * Q)
    mean, std = f[..., :Q], f[..., Q:].exp().sqrt()
    torch.testing.assert_close(likelihood.nll(f, y), -D.Normal(mean, std).log_prob(y).sum(-1).mean())
    p = likelihood.predictive(f)
    assert torch.equal(p.samples, mean)
    torch.testing.assert_close(p.noise_variance, std.square())
    assert likelihood.check_targets(y, 2 * Q).shape == (N, Q)


@pytest.mark.parametrize("learn_noise", [False, True])
def test_learned_noise_is_one_parameter_an_output_with_the_right_gradient(y, learn_noise):
    likelihood = bound(fsvi.Gaussian(0.5, learn_noise))
    assert [p.numel() for p in likelihood.parameters()] == ([Q] if learn_noise else [])
    if not learn_noise:
        return
    f = torch.randn(N, Q, dtype=torch.float64)
    likelihood.nll(f, y).backward()
    residual = ((y - f) / likelihood.noise).square().mean(0)
    torch.testing.assert_close(likelihood.log_noise.grad, 1 - residual)


@pytest.mark.parametrize("noise", [0.5, [0.3, 0.5, 2.0]])
def test_a_least_noise_changes_nothing_where_learning_starts(f, y, noise):
    likelihood = bound(fsvi.Gaussian(noise, learn_noise=True, least_noise=0.2))
    plain = bound(fsvi.Gaussian(noise, learn_noise=True))
    draws = f.view(-1, N, Q)
    for ours, theirs in (
        (likelihood.noise, plain.noise),
        (likelihood.nll(f, y), plain.nll(f, y)),
        (likelihood.predictive(draws).variance, plain.predictive(draws).variance),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert fsvi.Gaussian.from_config(likelihood.config()).least_noise == 0.2


def test_a_learned_noise_stops_at_the_least_and_can_grow_again():
    likelihood = bound(fsvi.Gaussian(0.5, learn_noise=True, least_noise=0.1), 1)
    optimizer = torch.optim.Adam(likelihood.parameters(), lr=0.05)
    for spread, expected in ((0.0, 0.1), (0.7, 0.7)):
        y = torch.tensor([[spread], [-spread]], dtype=torch.float64)
        for _ in range(400):
            optimizer.zero_grad()
            likelihood.nll(torch.zeros_like(y), y).backward()
            optimizer.step()
        assert 0.1 <= float(likelihood.noise) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_the_root_of_the_fisher_information_of_real_targets(heteroscedastic):
    settings = dict(heteroscedastic=True) if heteroscedastic else dict(noise=[0.3, 0.8])
    f = torch.randn(N, 4 if heteroscedastic else 2, dtype=torch.float64)
    likelihood = bound(fsvi.Gaussian(**settings), f.shape[1])
    root = likelihood.fisher_root(f)
    for given, outputs in zip(root @ root.mT, f, strict=True):
        mean = outputs[:2]
        std = (0.5 * outputs[2:]).exp() if heteroscedastic else likelihood.noise
        # two targets at one standard deviation on either side have the Gaussian's second moments
        targets = [mean + std * sign for sign in (torch.tensor([1.0, -1.0]), torch.tensor([-1.0, 1.0]))]
        torch.testing.assert_close(given, expected_curvature(likelihood, outputs, targets, [0.5, 0.5]))
