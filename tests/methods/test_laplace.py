import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call, jacrev
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi.errors import InvalidInputError
from fsvi_cases import begun
from fsvi_cases import laplace_moments as moments

STRUCTURES = pytest.mark.parametrize("structure", ["last_layer", "kron", "diagonal"])
NOISE = 0.5


def dense(outputs=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs))


def classes(num=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 2, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def classifier(structure="last_layer", data=None, **settings):
    """Around a network that has learned little, in float64: no mode is needed to compare with formulae."""
    x, y = data or classes()
    trained = fsvi.MAP(dense().double(), fsvi.Categorical())
    return fsvi.Laplace.from_trained(trained, (x, y), structure=structure, **settings)


# Linear regression, where everything is exact -------------------------------------------------------------------------


def linear_data(num=20):
    x = torch.randn(num, 3, dtype=torch.float64)
    weight = torch.tensor([[0.7, -0.4, 0.2], [0.1, 0.9, -0.3]], dtype=torch.float64)
    return x, x @ weight.T + 0.3 + NOISE * torch.randn(num, 2, dtype=torch.float64)


def design(x):
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def ridge(x, y, precision):
    """The posterior's mean (4, 2) and covariance (4, 4), the same for both outputs, of weights and bias."""
    phi = design(x)
    inverse = phi.T @ phi / NOISE**2 + precision * torch.eye(4, dtype=torch.float64)
    return torch.linalg.solve(inverse, phi.T @ y / NOISE**2), torch.linalg.inv(inverse)


def evidence(x, y, precision):
    phi = design(x)
    covariance = phi @ phi.T / precision + NOISE**2 * torch.eye(len(x), dtype=torch.float64)
    return MultivariateNormal(torch.zeros(len(x), dtype=torch.float64), covariance).log_prob(y.T).sum()


def linear_map(x, y, precision):
    """MAP of the linear model, at its exact mode."""
    net = nn.Sequential(nn.Linear(3, 2)).double()
    mean, _ = ridge(x, y, precision)
    with torch.no_grad():
        net[0].weight.copy_(mean[:3].T)
        net[0].bias.copy_(mean[3])
    return fsvi.MAP(net, fsvi.Gaussian(NOISE), prior_variance=1 / precision)


@pytest.mark.parametrize("structure", ["last_layer", "kron"])
def test_on_a_linear_gaussian_model_the_posterior_is_exact(structure):
    x, y = linear_data()
    new = torch.randn(5, 3, dtype=torch.float64)
    method = fsvi.Laplace.from_trained(linear_map(x, y, 0.8), (x, y), structure=structure, optimize_prior=False)
    weights, covariance = ridge(x, y, 0.8)
    mean, variance = moments(method, new)
    expected = (design(new) @ covariance @ design(new).T).diagonal()
    torch.testing.assert_close(mean, design(new) @ weights)
    torch.testing.assert_close(
        variance, expected[:, None, None] * torch.eye(2, dtype=torch.float64), rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("structure", ["last_layer", "kron"])
def test_on_a_linear_gaussian_model_the_evidence_is_exact(structure):
    x, y = linear_data()
    method = fsvi.Laplace.from_trained(linear_map(x, y, 0.8), (x, y), structure=structure, optimize_prior=False)
    assert method.prior_precision == pytest.approx(0.8)
    torch.testing.assert_close(method.log_marginal_likelihood(), evidence(x, y, 0.8), rtol=1e-6, atol=0)


def test_on_a_linear_gaussian_model_the_prior_precision_of_the_largest_evidence_is_found():
    x, y = linear_data()
    found = minimize_scalar(lambda log: -float(evidence(x, y, math.exp(log))), bracket=(-3, 3))
    best = math.exp(found.x)
    method = fsvi.Laplace.from_trained(linear_map(x, y, best), (x, y))
    assert method.prior_precision == pytest.approx(best, rel=1e-4)


# Classification and deep networks -------------------------------------------------------------------------------------


@STRUCTURES
def test_draws_are_those_of_the_linearised_network(structure):
    method = classifier(structure)
    x = torch.randn(4, 2, dtype=torch.float64)
    with torch.no_grad():
        draws = method.functions(3, torch.Generator().manual_seed(0))(x)
    shifts = method.posterior.draw(3, torch.Generator().manual_seed(0), x)
    means = {name: p.detach() for name, p in method.net.named_parameters()}
    jacobian = jacrev(lambda moved: functional_call(method.net, {**means, **moved}, (x,)))(
        {n: means[n] for n in shifts}
    )
    changes = [jacobian[name].flatten(2) @ shift.flatten(1).T for name, shift in shifts.items()]
    torch.testing.assert_close(draws, method.net(x).detach() + sum(changes).movedim(-1, 0))


@STRUCTURES
def test_the_curvature_does_not_depend_on_batches_or_their_order(structure, monkeypatch):
    x, y = classes()
    order = torch.randperm(len(x))
    loader = DataLoader(TensorDataset(x[order], y[order]), batch_size=7)
    whole = classifier(structure)
    monkeypatch.setattr("fsvi.methods.laplace._NUMBERS_AT_ONCE", 200)  # fewer inputs at once
    trained = fsvi.MAP(dense().double(), fsvi.Categorical())
    parts = fsvi.Laplace.from_trained(trained, loader, structure=structure)
    assert parts.prior_precision == pytest.approx(whole.prior_precision)
    new = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(moments(parts, new), moments(whole, new))


def test_fit_trains_as_map_and_then_approximates():
    data = classes()
    method, plain = fsvi.Laplace(dense(), fsvi.Categorical(), structure="kron"), fsvi.MAP(dense(), fsvi.Categorical())
    for each in (method, plain):
        fsvi.fit(each, data, epochs=20, batch_size=8)
    for own, other in zip(method.net.parameters(), plain.net.parameters(), strict=True):
        assert torch.equal(own, other)
    afterwards = fsvi.Laplace.from_trained(plain, data, structure="kron")
    assert afterwards.prior_precision == pytest.approx(method.prior_precision, rel=1e-5)
    assert afterwards.num_data == len(data[0])
    torch.testing.assert_close(afterwards.predict(data[0]).mean, method.predict(data[0]).mean, rtol=1e-4, atol=1e-5)


def test_the_learned_noise_of_the_trained_map_is_kept():
    x, _ = classes()
    trained = fsvi.MAP(dense(1), fsvi.Gaussian(0.3, learn_noise=True))
    fsvi.fit(trained, (x, x[:, :1]), epochs=5)
    method = fsvi.Laplace.from_trained(trained, TensorDataset(x, x[:, :1]))
    assert float(trained.likelihood.noise) != pytest.approx(0.3, rel=1e-3)
    assert torch.equal(method.likelihood.noise, trained.likelihood.noise)


def test_until_trained_it_predicts_as_map_and_has_no_evidence():
    x, _ = classes()
    method = fsvi.Laplace(dense(), fsvi.Categorical())
    assert torch.equal(method.predict(x).samples, fsvi.MAP(dense(), fsvi.Categorical()).predict(x).samples)
    with pytest.raises(InvalidInputError, match="posterior"):
        method.log_marginal_likelihood()


def test_training_again_forgets_the_posterior():
    method = fsvi.Laplace(dense(), fsvi.Categorical())
    fsvi.fit(method, classes(), epochs=1)
    begun(method, *classes())
    with pytest.raises(InvalidInputError, match="posterior"):
        method.log_marginal_likelihood()


@STRUCTURES
def test_a_file_brings_the_posterior_back(structure, tmp_path):
    data = classes()
    method = fsvi.Laplace(dense(), fsvi.Categorical(), structure=structure)
    fsvi.fit(method, data, epochs=3)
    method.save(tmp_path / "laplace.fsvi")
    loaded = fsvi.load(tmp_path / "laplace.fsvi", dense(seed=1))
    assert torch.equal(loaded.predict(data[0]).samples, method.predict(data[0]).samples)
    assert loaded.log_marginal_likelihood() == method.log_marginal_likelihood()


@STRUCTURES
def test_batch_norm_uses_its_running_statistics_and_keeps_them(make, structure):
    net, x = make("batch_norm", 8)
    net.eval()
    before = net[1].running_mean.clone()
    method = fsvi.Laplace.from_trained(fsvi.MAP(net, fsvi.Categorical()), (x, torch.arange(8) % 2), structure=structure)
    assert torch.equal(method.net[1].running_mean, before)
    p = method.predict(x, num_samples=3)
    assert p.samples.shape == (3, 8, 2) and bool(p.samples.isfinite().all())


def test_frozen_layers_carry_no_uncertainty(make):
    net, x = make("mlp", 8)
    net[0].requires_grad_(False)
    labels = torch.arange(8) % 2
    method = fsvi.Laplace.from_trained(fsvi.MAP(net, fsvi.Categorical()), (x, labels), structure="kron")
    assert {name for layer in method.posterior.layers for name in layer.names} == {"2.weight", "2.bias"}
    net[2].weight.requires_grad_(False)
    with pytest.raises(InvalidInputError, match="trainable"):
        fsvi.fit(fsvi.Laplace(net, fsvi.Categorical()), (x, labels), epochs=1)


def test_a_frozen_bias_stays_where_it_is(make):
    net, x = make("mlp", 8)
    net[2].bias.requires_grad_(False)
    method = fsvi.Laplace.from_trained(fsvi.MAP(net, fsvi.Categorical()), (x, torch.arange(8) % 2))
    assert method.predict(x, num_samples=3).samples.shape == (3, 8, 2)


@pytest.mark.parametrize(("trained", "data"), [(None, classes()), (fsvi.MAP(dense(), fsvi.Categorical()), 3)])
def test_from_trained_wants_a_map_and_data(trained, data):
    with pytest.raises(InvalidInputError, match=r"fsvi\.MAP|int"):
        fsvi.Laplace.from_trained(trained, data)


# Other likelihoods ----------------------------------------------------------------------------------------------------


def test_one_logit_has_the_posterior_of_two():
    """Gauss–Newton of Bernoulli with f is that of Categorical with (0, f): the same precision of the single output."""
    x = torch.randn(30, 2, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    net = dense(1).double()
    one = fsvi.Laplace.from_trained(fsvi.MAP(net, fsvi.Bernoulli()), (x, y), optimize_prior=False)
    mean, covariance = moments(one, x)
    p = mean.sigmoid()
    with torch.no_grad():
        features = torch.cat([net[:2](x), torch.ones(30, 1)], 1)
    hessian = features.T @ (p * (1 - p) * features) + torch.eye(6, dtype=torch.float64)
    expected = torch.einsum("ni,ij,nj->n", features, torch.linalg.inv(hessian), features)
    torch.testing.assert_close(covariance.flatten(), expected)


@pytest.mark.parametrize("likelihood", [fsvi.Gaussian(0.5), fsvi.Categorical(ignore_index=-1)])
def test_examples_without_a_target_do_not_change_the_posterior(likelihood):
    x = torch.randn(30, 2, dtype=torch.float64)
    y = x[:, :1].clone() if likelihood.is_numeric else (x[:, 0] > 0).long()
    y[20:] = torch.nan if likelihood.is_numeric else -1
    trained = fsvi.MAP(dense(1 if likelihood.is_numeric else 2).double(), likelihood)
    some = fsvi.Laplace.from_trained(trained, (x[:20], y[:20]))
    every = fsvi.Laplace.from_trained(trained, (x, y))
    torch.testing.assert_close(moments(every, x), moments(some, x))
    torch.testing.assert_close(every.log_marginal_likelihood(), some.log_marginal_likelihood())
