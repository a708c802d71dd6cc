"""S-FSVI: the posterior of one task is the prior of the next."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import fsvi
from fsvi import contexts, divergences
from fsvi.functions.linearize import LINEARIZERS
from fsvi_cases import loss_of

NOISE, PRIOR_VARIANCE = 0.5, 0.8
HEADS = [[0, 1], [2], [3, 4]]


def points(num=12, seed=0):
    return torch.randn(num, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def multi_head(linearize="jvp", **settings):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    settings = {"coreset": 3, "num_context": 4, "divergence": divergences.KL(1e-3), **settings}
    box = contexts.Uniform([-1.0, -1.0], [1.0, 1.0])
    return fsvi.SFSVI(net, fsvi.MultiHead(HEADS), box, linearize=linearize, **settings)


# The oracle ----------------------------------------------------------------------------------------------------------


def minimize(method, x, y):
    q = method.posterior
    method.num_data = len(x)
    optimizer = torch.optim.LBFGS(
        [*q.means().values(), q.log_std], max_iter=300, line_search_fn="strong_wolfe", tolerance_change=1e-14
    )

    def closure():
        optimizer.zero_grad()
        loss = loss_of(method, x, y)
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("coreset", [0, 4])
def test_a_sequence_of_linear_regressions_ends_in_the_posterior_of_all_data(coreset, monkeypatch):
    """Tasks with orthogonal designs have posteriors without correlations, which q can represent. At spanning points
    the function KL is the parameters' own, however many points there are, so three tasks in turn are Bayes' rule
    applied three times. Draws one standard deviation above and below make the expectation of a quadratic exact."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 1)).double()
    cube = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)), dtype=torch.float64)
    tasks = [(cube * torch.rand(3).double(), torch.randn(8, 1).double()) for _ in range(3)]
    method = fsvi.SFSVI(
        net,
        fsvi.Gaussian(NOISE),
        contexts.Dataset(2 * cube[[0, 1, 2, 4]]),
        coreset=coreset,
        num_context=4,
        num_samples=2,
        prior=fsvi.priors.Empirical(net, PRIOR_VARIANCE),
        divergence=divergences.KL(nugget=1e-7),
    )
    loss_of(method, *tasks[0])
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", lambda size, **_: signs.expand(size))
        for x, y in tasks:
            minimize(method, x, y)
            method.end_task(x)
    design, y = (torch.cat(each) for each in zip(*tasks, strict=True))
    design = torch.cat([design, torch.ones(24, 1, dtype=torch.float64)], dim=1)
    start = torch.cat([net[0].weight.T, net[0].bias[None]]).detach()
    precision = design.T @ design / NOISE**2 + torch.eye(4) / PRIOR_VARIANCE
    mean = torch.linalg.solve(precision, design.T @ y / NOISE**2 + start / PRIOR_VARIANCE)
    found, stds = (torch.cat([each["0.weight"].T, each["0.bias"][None]]) for each in (q_means(method), q_stds(method)))
    torch.testing.assert_close(found, mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(stds.square().squeeze(), precision.inverse().diagonal(), rtol=1e-3, atol=1e-6)


def q_means(method):
    return dict(method.net.named_parameters())


def q_stds(method):
    return method.posterior.stds()


@pytest.mark.parametrize("linearize", ["jvp", "exact"])
def test_each_head_is_compared_at_the_context_and_at_its_own_coreset(linearize):
    """The KL term against torch.distributions, with the Gaussians of all outputs at all points as ingredients."""
    stochastic = "last_layer" if linearize == "jvp" else "all"
    method = multi_head(linearize, coreset=3, num_context=4, kl_weight=1.0, stochastic=stochastic)
    for number in range(2):
        x = points(seed=number)
        method.num_data = 12
        method.begin(x, torch.full((12,), HEADS[number][0]))
        method.end_task(x, seed=number)
    with torch.no_grad():
        for mean in method.posterior.means().values():
            mean.add_(0.3 * torch.randn_like(mean))
        method.posterior.log_std.add_(0.5 * torch.randn_like(method.posterior.log_std) - 0.5)
    method.likelihood.task = 2
    box = points(4, seed=9)
    method.context = contexts.Dataset(box)
    kl = method(points(), torch.full((12,), 3))["kl"]

    kept, owners = method.points, torch.arange(2).repeat_interleave(3)
    expected = 0.0
    for task, head in enumerate(HEADS[:2]):
        x = torch.cat([box, kept[owners == task]])
        q, p = (LINEARIZERS[linearize](method.network, method.posterior, x, None), method.prior.gaussian(x))
        q, p = (each if each.outputs_joined > 1 else each.joint() for each in (q, p))
        rows = torch.tensor([5 * n + output for n in range(len(x)) for output in head])
        q, p = (
            MultivariateNormal(
                g.mean[rows, 0].double(), (g.covariance[0] + 1e-3 * torch.eye(len(g.mean)))[rows][:, rows].double()
            )
            for g in (q, p)
        )
        expected = expected + kl_divergence(q, p)
    assert len(method.points) == 6
    torch.testing.assert_close(kl, expected, rtol=1e-6, atol=1e-6)


def test_heads_of_later_tasks_stay_as_they_are():
    method = multi_head()
    before = dict(method.net.named_parameters())["2.weight"].detach().clone()
    fsvi.fit_tasks(method, [(points(), torch.arange(12) % 2)], epochs=3)
    moved = (dict(method.net.named_parameters())["2.weight"] - before).abs().amax(1)
    assert (moved[:2] > 0).all() and (moved[2:] == 0).all()


def test_the_posterior_becomes_the_prior():
    method = multi_head(stochastic="last_layer")
    fsvi.fit_tasks(method, [(points(), torch.arange(12) % 2)], epochs=3)
    assert method.num_tasks == 1
    torch.testing.assert_close(method.function_kl(points()), torch.zeros((), dtype=torch.float64), atol=1e-9, rtol=0)
    method.net[0].weight.data += 0.1
    method.net[2].weight.data += 0.1
    assert method.function_kl(points()) > 0.01


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_loaded_method_learns_the_next_task_as_the_saved_one(tmp_path):
    method, tasks = multi_head(), [(points(seed=0), torch.arange(12) % 2), (points(seed=1), torch.full((12,), 2))]
    with pytest.warns(UserWarning, match="all 12 labels"):
        fsvi.fit_tasks(method, tasks, epochs=2)
    method.save(tmp_path / "method")
    loaded = fsvi.load(tmp_path / "method")
    assert loaded.num_tasks == 2 and torch.equal(loaded.points, method.points)
    third = (points(seed=2), 3 + torch.arange(12) % 2)
    for each in (method, loaded):
        fsvi.fit_tasks(each, [third], first=2, epochs=2)
    assert all(map(torch.equal, method.net.parameters(), loaded.net.parameters()))
    assert len(loaded.points) == 9


# Bad input -----------------------------------------------------------------------------------------------------------


def test_a_coreset_needs_inputs_in_one_tensor():
    with pytest.raises(fsvi.errors.InvalidInputError, match="coreset"):
        multi_head().end_task({"a": torch.zeros(2, 2)})
