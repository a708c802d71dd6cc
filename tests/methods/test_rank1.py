import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import fsvi
from fsvi.errors import InvalidInputError
from fsvi_cases import loss_of

LABELS = torch.tensor([0, 1, 1, 0])


def noiseless(net, **settings):
    """Unit factors and no noise."""
    method = fsvi.Rank1(net, fsvi.Categorical(), **settings)
    with torch.no_grad():
        method.factors.log_std.fill_(-100)
    return method


@pytest.mark.parametrize("name", ["mlp", "depthwise", "batch_norm", "resnet18", "transformer"])
@pytest.mark.parametrize("prior_variance", [None, 0.3])
def test_unit_factors_without_noise_are_map(make, name, prior_variance):
    net, x = make(name)
    rank1 = noiseless(net, prior_variance=prior_variance, kl_weight=0.0)
    reference = fsvi.MAP(net, fsvi.Categorical(), prior_variance=prior_variance)
    torch.testing.assert_close(loss_of(rank1, x, LABELS), loss_of(reference, x, LABELS))
    mine, theirs = rank1.predict(x, num_samples=5), reference.predict(x)
    torch.testing.assert_close(mine.samples, theirs.samples.expand(5, 4, -1))


def test_unit_factors_without_noise_train_as_map(make):
    net, x = make("mlp")
    rank1 = noiseless(net, kl_weight=0.0, stds=fsvi.posteriors.Stds(0.05, 0.0))
    rank1.factors.mean.requires_grad_(False)
    reference = fsvi.MAP(net, fsvi.Categorical())
    for method in (rank1, reference):
        fsvi.fit(method, (x, LABELS), epochs=5, lr=0.1)
    torch.testing.assert_close(dict(rank1.net.named_parameters()), dict(reference.net.named_parameters()))


@pytest.mark.parametrize("num_data", [None, 50])
def test_the_loss_adds_the_scaled_kl_over_n(make, num_data):
    net, x = make("mlp")
    method = fsvi.Rank1(
        net,
        fsvi.Categorical(),
        prior_std=0.2,
        kl_weight=fsvi.Tempered(0.3),
        random_signs=True,
        stds=fsvi.posteriors.Stds(0.1),
    )
    method.num_data = num_data
    terms = method(x, LABELS)
    assert list(terms) == ["nll", "kl", "prior"]
    each = math.log(0.2 / 0.1) + 0.5 * (0.1 / 0.2) ** 2 - 0.5
    assert terms["kl"].item() == pytest.approx(0.3 / (num_data or 4) * each * (3 + 5 + 5 + 2))


@torch.no_grad()
def test_every_component_gets_its_share_of_a_minibatch_at_random(make):
    """Components that scale the outputs by 1, 2 and 3 are told apart by them."""
    net, _ = make("linear")
    method = noiseless(net, num_components=3)
    scale = torch.arange(1.0, 4.0, dtype=torch.float64)[:, None]
    method.factors.layout.views(method.factors.mean)["s of 0"].copy_(scale.expand(3, 2))
    net[0].bias.zero_()
    method.net[0].bias.zero_()
    x = torch.randn(1, 3, dtype=torch.float64)
    seen = []
    for _ in range(2):
        ratios = method._outputs(x.expand(10, 3), method._deal(10))[:, 0] / net(x)[0, 0]
        components = ratios.round().long() - 1
        assert sorted(components.bincount(minlength=3).tolist()) == [3, 3, 4]
        seen.append(components)
    assert not torch.equal(*seen)


@torch.no_grad()
def test_examples_have_their_own_draws(make):
    net, _ = make("mlp")
    method = fsvi.Rank1(net, fsvi.Categorical(), num_components=1)
    factors = method._deal(6)
    assert len(factors.unique(dim=0)) == 6


@torch.no_grad()
def test_predictions_go_through_the_components_in_turn(make):
    net, x = make("mlp")
    method = fsvi.Rank1(net, fsvi.Categorical(), num_components=3)
    method.factors.mean.normal_(1, 0.5)
    method.factors.log_std.fill_(-100)
    draws = method.predict(x, num_samples=7).samples
    assert len(draws.unique(dim=0)) == 3
    for i, draw in enumerate(draws):
        views = method.factors.layout.views(method.factors.mean[i % 3])
        weights = {f"{n}.weight": net[n].weight * torch.outer(views[f"s of {n}"], views[f"r of {n}"]) for n in (0, 2)}
        torch.testing.assert_close(draw, functional_call(net, weights, (x,)).softmax(-1))


def test_draws_are_the_same_function_of_every_input(make):
    net, x = make("mlp")
    method = fsvi.Rank1(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(0.5))
    together, apart = (method.predict(x, num_samples=6, batch_size=size).samples for size in (4, 1))
    torch.testing.assert_close(together, apart)


def test_gradients_reach_weights_and_factors_of_every_component(make):
    net, _ = make("batch_norm")
    method = fsvi.Rank1(net, fsvi.Categorical(), num_components=2)
    loss_of(method, torch.randn(8, 2, 6, 6), LABELS.repeat(2)).backward()
    q = method.factors
    assert all((p.grad != 0).any() for p in method.net.parameters())
    assert (q.mean.grad != 0).any(1).all() and (q.log_std.grad != 0).all()


def test_batch_norm_and_frozen_layers_have_no_factors(make):
    net, x = make("batch_norm")
    net[3].requires_grad_(False)
    method = fsvi.Rank1(net, fsvi.Categorical())
    assert list(method.factors.layout.shapes) == ["r of 0", "s of 0", "r of 6", "s of 6"]
    fsvi.fit(method, (x, LABELS), epochs=2, lr=0.1)
    assert torch.equal(method.net[3].weight, net[3].weight) and not torch.equal(method.net[0].weight, net[0].weight)
    assert not torch.equal(method.net[1].running_mean, net[1].running_mean)


def test_log_std_has_its_own_learning_rate(make):
    net, _ = make("mlp")
    method = fsvi.Rank1(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(0.05, 0.25))
    rates = {id(p): group["lr"] for group in method.parameter_groups(0.1) for p in group["params"]}
    assert rates.pop(id(method.factors.log_std)) == 0.025
    assert set(rates.values()) == {0.1} and len(rates) == len(list(method.parameters())) - 1


def test_two_moons_are_learned_with_the_defaults():
    x, y = fsvi.data.two_moons(200, seed=0)
    method = fsvi.Rank1(fsvi.networks.mlp(2, (30, 30), 2, nn.Tanh), fsvi.Categorical())
    history = fsvi.fit(method, (x, y), epochs=150)
    x_test, y_test = fsvi.data.two_moons(500, seed=1)
    assert history.terms["nll"][-1] < 0.5 * history.terms["nll"][0]
    assert (method.predict(x_test, num_samples=20).labels() == y_test).float().mean() > 0.93


@pytest.mark.parametrize(
    "settings",
    [
        {"num_components": 0},
        {"prior_std": 0.0},
        {"kl_weight": -1.0},
        {"num_samples": 0},
        {"stds": fsvi.posteriors.Stds()},
        {"seed": -1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_mean_nothing_are_refused_by_name(settings):
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        fsvi.Rank1(nn.Linear(2, 2), fsvi.Categorical(), **settings)
