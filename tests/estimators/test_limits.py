import math

import pytest
import torch

import fsvi
from fsvi.estimators.limits import COST, LIMITS, find_limits, losses
from fsvi.networks.fading import fade
from fsvi.networks.known_rows import NewRows


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_losses_of_targets_are_those_of_a_gaussian_with_a_faded_mean():
    outputs, y, distances = normal(6, 1), normal(6, 1, seed=1), normal(6, 4, seed=2).abs()
    found = losses(outputs, y, fsvi.Gaussian(0.3), 9.0, distances)
    fading = fade(distances)[1]
    exact = torch.distributions.Normal(outputs * fading, (0.09 + 9 * (1 - fading**2)).sqrt())
    torch.testing.assert_close(found[:, 0], -exact.log_prob(y)[:, 0] - 0.5 * math.log(2 * math.pi))
    torch.testing.assert_close(found[:, 1], (y - outputs * fading).square()[:, 0])


def test_losses_of_classes_are_about_those_of_random_logits():
    """Against an average over many draws of the difference of two logits; the approximation is good to .02."""
    outputs, y = (
        torch.tensor([[4.0, 0.0], [0.0, 3.0], [5.0, 0.0], [0.0, 6.0], [2.0, 0.0]]).double(),
        torch.arange(5) % 2,
    )
    distances = torch.tensor([[0.0], [0.3], [0.7], [1.5], [6.0]]).double()
    found = losses(outputs, y, fsvi.Categorical(), 50.0, distances)[:, 0]
    fading = fade(distances)[1][:, 0]
    means = (outputs[:, 0] - outputs[:, 1]).abs() * fading
    draws = means + (50 * (1 - fading**2)).sqrt() * normal(40_000, 5, seed=1)
    torch.testing.assert_close((-found).exp(), draws.sigmoid().mean(0), rtol=0, atol=0.025)
    plain = losses(outputs, y, fsvi.Categorical(), 50.0)[:, 0]
    torch.testing.assert_close(plain, torch.nn.functional.cross_entropy(outputs, y, reduction="none"))


def start_with(scale):
    """A classifier of the sign of the first column; a large scale makes it sure."""
    method = fsvi.MAP(torch.nn.Linear(3, 2).double(), fsvi.Categorical())
    with torch.no_grad():
        method.net.weight.zero_()
        method.net.bias.zero_()
        method.net.weight[1, 0] = scale
    return method


def test_a_model_that_is_sure_and_right_leaves_out_fewer_rows():
    x = normal(400, 3)
    x[:, 0] += 3 * x[:, 0].sign()
    y, new = (x[:, 0] > 0).long(), NewRows(x)
    noisy = torch.where(torch.arange(400) % 4 == 0, 1 - y, y)
    held_out = (x[:100], y[:100])
    sure = find_limits(start_with(2.0), new, y[new.index], held_out, 50.0)
    unsure = find_limits(start_with(0.5), new, noisy[new.index], (x[:100], noisy[:100]), 50.0)
    torch.testing.assert_close(unsure, new.limits(*LIMITS[0]))
    assert (sure[:4] > unsure[:4]).all()


def test_the_cost_is_what_the_rule_says():
    x = normal(300, 2)
    new, start = NewRows(x), fsvi.MAP(torch.nn.Linear(2, 1).double(), fsvi.Gaussian(0.5))
    y = start.predict(x).mean.detach() + 0.5 * normal(300, 1, seed=1)
    found = find_limits(start, new, y[new.index], (x, y), 9.0)
    outputs = start.predict(new.x).mean.detach()
    plain = losses(outputs, y[new.index], start.likelihood, 9.0).mean(0)
    for factor, width in LIMITS:
        limits = new.limits(factor, width)
        after = losses(outputs, y[new.index], start.likelihood, 9.0, new.distances(limits)).mean(0)
        if after[0] - plain[0] <= 0.01 and after[1] - plain[1] <= COST * plain[1]:
            break
    torch.testing.assert_close(found, limits)


@pytest.mark.parametrize("held_out", [(), (normal(0, 2), normal(0, 1))])
def test_without_held_out_rows_training_rows_tell_the_loss(held_out):
    x = normal(50, 2)
    start = fsvi.MAP(torch.nn.Linear(2, 1).double(), fsvi.Gaussian(0.5))
    new = NewRows(x)
    assert find_limits(start, new, normal(50, 1), held_out, 9.0).isfinite().all()
    poisson = fsvi.MAP(torch.nn.Linear(2, 1).double(), fsvi.Poisson())
    torch.testing.assert_close(find_limits(poisson, new, normal(50, 1), held_out, 9.0), new.limits(*LIMITS[0]))
