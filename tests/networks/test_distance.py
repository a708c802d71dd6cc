"""Random features against the RBF kernel and Gaussian process regression; heads that know distance."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi.networks import RandomFeatures


def rbf(a, b, scale):
    return torch.exp(-torch.cdist(a, b).square() / (2 * scale**2))


def kernel_error(num_features):
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    errors = []
    for seed in range(20):
        torch.manual_seed(seed)
        features = RandomFeatures(3, num_features, 1.5)(x)
        errors.append((features @ features.T - rbf(x, x, 1.5)).square().mean())
    return torch.stack(errors).mean().sqrt()


def test_the_kernels_error_falls_with_the_root_of_the_number_of_features():
    sizes = torch.tensor([32.0, 128.0, 512.0, 2048.0])
    errors = torch.stack([kernel_error(int(size)) for size in sizes])
    steps = sizes.log() - sizes.log().mean()
    slope = (steps * errors.log()).sum() / steps.square().sum()
    assert slope == pytest.approx(-0.5, abs=0.05)


def test_training_inputs_give_the_median_distance_and_uncorrelated_features():
    x = 3 * torch.randn(200, 2)
    features = RandomFeatures(2, 32)
    before = features(x) @ features(x).T
    features.see(x)
    assert features.scale == torch.pdist(x).median()
    rotated = features(x)
    gram = rotated.T @ rotated
    torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-3)
    assert (gram.diagonal().diff() <= 1e-3).all()
    features.axes.copy_(torch.eye(32))
    torch.testing.assert_close(rotated @ rotated.T, features(x) @ features(x).T, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, rotated @ rotated.T)


def test_laplace_on_the_features_is_gaussian_process_regression():
    torch.manual_seed(0)
    x, new = torch.rand(30, 1, dtype=torch.float64) * 4 - 2, torch.linspace(-6, 6, 25, dtype=torch.float64)[:, None]
    y = x.sin() + 0.2 * torch.randn_like(x)
    net = nn.Sequential(RandomFeatures(1, 1500, 1.0), nn.Linear(1500, 1, bias=False)).double()
    trained = fsvi.MAP(net, fsvi.Gaussian(0.2), prior_variance=2.0)
    with torch.no_grad():
        phi = trained.net[0](x)
        weights = 2 * phi.T @ torch.linalg.solve(2 * phi @ phi.T + 0.04 * torch.eye(30), y)
        trained.net[1].weight.copy_(weights.T)
    covariance = 2 * rbf(x, x, 1.0) + 0.04 * torch.eye(30)
    cross = 2 * rbf(new, x, 1.0)
    mean = cross @ torch.linalg.solve(covariance, y)
    variance = 2 - (cross * torch.linalg.solve(covariance, cross.T).T).sum(1)
    precision = phi.T @ phi / 0.04 + torch.eye(1500) / 2
    features = trained.net[0](new)
    own = (features * torch.linalg.solve(precision, features.T).T).sum(1)
    torch.testing.assert_close(trained.net(new).detach(), mean, rtol=0, atol=0.12)
    torch.testing.assert_close(own, variance, rtol=0, atol=0.12)
