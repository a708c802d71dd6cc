"""FSVI that starts from a trained network."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi import contexts
from fsvi.errors import InvalidInputError


def trained_map():
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    y = (x[:, 0] > 0).long()
    method = fsvi.MAP(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), fsvi.Categorical())
    fsvi.fit(method, (x, y), epochs=30, progress=False)
    return method, x, y


def test_from_trained_starts_at_the_trained_network():
    source, x, _ = trained_map()
    for given in (source, source.net):
        method = fsvi.FSVI.from_trained(given, fsvi.Categorical(), contexts.Dataset(5 * x))
        assert method.stochastic == "last_layer"
        means = dict(method.net.named_parameters())
        assert all(torch.equal(means[name], p) for name, p in source.net.named_parameters())


def test_from_trained_takes_the_methods_likelihood():
    source, x, _ = trained_map()
    assert isinstance(fsvi.FSVI.from_trained(source, context=contexts.Dataset(x)).likelihood, fsvi.Categorical)
    with pytest.raises(InvalidInputError, match="likelihood"):
        fsvi.FSVI.from_trained(source.net, context=contexts.Dataset(x))


@pytest.mark.parametrize("freeze", [True, ["0"], ["0.weight", "0.bias"]])
def test_from_trained_leaves_frozen_layers_alone(freeze):
    source, x, y = trained_map()
    method = fsvi.FSVI.from_trained(source, context=contexts.Dataset(5 * x), freeze=freeze)
    fsvi.fit(method, (x, y), epochs=2, progress=False)
    means = dict(method.net.named_parameters())
    assert torch.equal(means["0.weight"], source.net[0].weight) and torch.equal(means["0.bias"], source.net[0].bias)
    assert not torch.equal(means["2.weight"], source.net[2].weight)
    assert all(p.requires_grad for p in source.net.parameters())


def test_from_trained_makes_the_context_uncertain_and_keeps_the_data():
    source, x, y = trained_map()
    away = torch.randn(40, 3) + torch.tensor([0.0, 8.0, 8.0])
    method = fsvi.FSVI.from_trained(source, context=contexts.Dataset(away))
    before = source.predict(away).entropy().mean()
    fsvi.fit(method, (x, y), epochs=100, progress=False)
    assert method.predict(away).entropy().mean() > before + 0.1
    assert (method.predict(x).mean.argmax(1) == y).float().mean() >= 0.9


@pytest.mark.parametrize("num", [10, 60])
def test_the_kl_counts_as_that_of_eight_points(num):
    source, x, y = trained_map()
    method = fsvi.FSVI.from_trained(source, context=contexts.Dataset(x[:num]), num_context=num)
    method.num_data = 100
    with torch.no_grad():
        torch.testing.assert_close(method(x, y)["kl"], 8 / num / 100 * method.function_kl(x[:num]))


def test_training_on_features_is_training_with_a_frozen_backbone():
    source, x, y = trained_map()
    away = x + 5
    frozen = fsvi.FSVI.from_trained(source, context=contexts.Dataset(away), freeze=True)
    body = source.net[:-1]
    with torch.no_grad():
        features, context = body(x), contexts.Dataset(body(away))
    alone = fsvi.FSVI.from_trained(nn.Sequential(nn.Identity(), source.net[-1]), source.likelihood, context)
    for method, inputs in ((frozen, x), (alone, features)):
        fsvi.fit(method, (inputs, y), epochs=5, batch_size=20, progress=False)
    torch.testing.assert_close(alone.predict(features).mean, frozen.predict(x).mean, rtol=0, atol=1e-5)
    again = fsvi.FSVI.from_trained(source, context=contexts.Dataset(away), freeze=True)
    again.network.linear.load_state_dict(alone.network.linear.state_dict())
    again.posterior.load_state_dict(alone.posterior.state_dict())
    torch.testing.assert_close(again.predict(x).mean, frozen.predict(x).mean, rtol=0, atol=1e-5)


def test_from_trained_names_a_layer_that_is_not_there():
    source, x, _ = trained_map()
    with pytest.raises(InvalidInputError, match="freeze='conv'"):
        fsvi.FSVI.from_trained(source, context=contexts.Dataset(x), freeze=["conv"])


def test_a_posterior_as_prior_is_where_the_next_task_starts():
    source, x, y = trained_map()
    first = fsvi.FSVI.from_trained(source, context=contexts.Dataset(x), stochastic="all")
    fsvi.fit(first, (x, y), epochs=3, progress=False)
    second = fsvi.FSVI(
        first.net, fsvi.Categorical(), contexts.Dataset(x), prior=fsvi.priors.Empirical(first), linearize="exact"
    )
    second.net.load_state_dict(first.net.state_dict())
    second.posterior.log_std.data.copy_(first.posterior.log_std.data)
    assert abs(float(second.function_kl(x[:6]).detach())) < 1e-6


@pytest.mark.parametrize("num_draws", [1, 2])
@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
def test_a_posterior_has_no_divergence_from_itself(linearize, num_draws):
    """All layers are random: prior and posterior must be drawn with the same noise."""
    source, x, y = trained_map()
    settings = dict(context=contexts.Dataset(x), stochastic="all", linearize=linearize)
    first = fsvi.FSVI.from_trained(source, **settings)
    fsvi.fit(first, (x, y), epochs=3, progress=False)
    second = fsvi.FSVI.from_trained(
        first,
        prior=fsvi.priors.Empirical(first),
        divergence=fsvi.divergences.KL(num_draws=num_draws),
        num_context_sets=2,
        **settings,
    )
    second.posterior.log_std.data.copy_(first.posterior.log_std.data)
    assert float(second.function_kl(x[:6]).detach()) == pytest.approx(0, abs=1e-4)
    assert float(second(*second.check_batch(x, y))["kl"].detach()) == pytest.approx(0, abs=1e-4)
