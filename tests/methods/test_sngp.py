"""SNGP against Bayesian linear regression on its features, exact Gaussian processes, and singular values by SVD."""

from unittest.mock import patch

import torch
from torch import Tensor, nn

import fsvi
from fsvi.methods.sngp import SNGP, largest_singular_value

NOISE, VARIANCE = 0.3, 2.0


def curve(num: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.randn(num, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def on_inputs(num_features: int, outputs: int = 1, likelihood: fsvi.likelihoods.Likelihood | None = None) -> SNGP:
    """A method whose features are the inputs themselves."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), nn.Linear(2, outputs)).double()
    likelihood = fsvi.Gaussian(NOISE) if likelihood is None else likelihood
    settings = {"num_features": num_features, "length_scale": 1.5, "prior_variance": VARIANCE}
    return SNGP(net, likelihood, **settings).eval()


def variances(method: SNGP, x: Tensor) -> Tensor:
    """Those of the outputs at `x`, (n, outputs), without sampling error: draws are linear in their noise."""
    units = torch.eye(method.num_features, dtype=method.dtype)
    with patch("fsvi.methods.sngp.normal", lambda shape, *_: units.expand(shape)), torch.no_grad():
        draws = method.functions(method.num_features, torch.Generator())(x)
        return (draws - method.features(x) @ method.weight.T).square().sum(0)


def eye(num: int) -> Tensor:
    return torch.eye(num, dtype=torch.float64)


def test_for_regression_it_is_bayesian_regression_on_the_random_features():
    (x, y), method = curve(), on_inputs(20)
    method.num_data = len(x)
    phi = method.features(x)
    precision = phi.T @ phi / NOISE**2 + eye(20) / VARIANCE
    with torch.no_grad():
        method.weight.copy_(torch.linalg.solve(precision, phi.T @ y / NOISE**2).T)
    sum(method(x, y).values()).backward()
    torch.testing.assert_close(method.weight.grad, torch.zeros_like(method.weight))  # the ridge solution is the minimum
    method.finish(lambda: [(x[:10], y[:10]), (x[10:], y[10:])])
    torch.testing.assert_close(method.precision[0], precision, rtol=1e-6, atol=1e-6)
    new = 3 * torch.randn(5, 2, dtype=torch.float64)
    rows = method.features(new)
    torch.testing.assert_close(variances(method, new), (rows @ torch.linalg.inv(precision) * rows).sum(1, keepdim=True))


def test_for_classes_each_precision_is_the_formula():
    x, _ = curve()
    y, method = torch.arange(30) % 3, on_inputs(12, 3, fsvi.Categorical())
    with torch.no_grad():
        method.weight.normal_()
    method.finish(lambda: [(x, y)])
    phi = method.features(x)
    p = (phi @ method.weight.T).softmax(1)
    for k in range(3):
        expected = eye(12) / VARIANCE + sum(p[n, k] * (1 - p[n, k]) * phi[n].outer(phi[n]) for n in range(30))
        torch.testing.assert_close(method.precision[k], expected)


def test_with_many_features_the_variance_is_that_of_an_exact_gaussian_process():
    x, y = curve()
    new = 2 * torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return VARIANCE * (-torch.cdist(a, b).square() / (2 * 1.5**2)).exp()

    cross = kernel(new, x)
    exact = VARIANCE - (cross * torch.linalg.solve(kernel(x, x) + NOISE**2 * eye(30), cross.T).T).sum(1)

    def error(num_features: int) -> float:
        method = on_inputs(num_features)
        method.finish(lambda: [(x, y)])
        return float((variances(method, new)[:, 0] - exact).abs().mean())

    assert error(1024) < 0.05 < error(32)


def test_the_largest_singular_value_is_that_of_the_svd():
    torch.manual_seed(0)
    for shape in ((4, 9), (9, 4), (5, 3, 3, 3)):
        weight = torch.randn(shape)
        torch.testing.assert_close(largest_singular_value(weight), torch.linalg.svdvals(weight.flatten(1))[0])


def test_steps_bound_large_singular_values_only():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight.mul_(10)
        net[2].weight.mul_(0.1)
        net[4].weight.mul_(10)
    method = SNGP(net, fsvi.Categorical(), num_features=8, max_norm=0.9)
    method.after_step()
    torch.testing.assert_close(torch.linalg.svdvals(method.net[0].weight.flatten(1))[0], torch.tensor(0.9))
    assert torch.equal(method.net[2].weight, net[2].weight)
    assert torch.equal(method.net[4].weight, net[4].weight)  # it is not used


def test_trained_it_is_certain_near_the_data_and_as_the_prior_far_away():
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    method = SNGP(net, fsvi.Categorical(), num_features=128, length_scale=0.5)
    fsvi.fit(method, (x, (x[:, 0] > 0).long()), epochs=10, batch_size=50, lr=0.03, progress=False)
    method.eval()
    assert method.predict(x).mean.argmax(1).eq((x[:, 0] > 0).long()).float().mean() > 0.9
    near, far = (variances(method, each).mean() for each in (x, 20 * x))
    assert near < 0.5 and far > 0.9
