import pytest
import torch

import fsvi
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.linearize import LINEARIZERS
from fsvi.functions.priors import Constant, Empirical, Induced
from fsvi.networks import Network

JVP = LINEARIZERS["jvp"]


def bound(prior, net, x, linearize="jvp"):
    split = Network(net).examined(x)
    prior.bind(split, linearize)
    return split, prior


def last_layer_moments(net, variance, x):
    """f(X) and v(ΦΦᵀ + 11ᵀ) of a network in eval mode, Φ the input of its last layer."""
    split = Network(net).examined(x)
    net.eval()
    with torch.no_grad():
        features, outputs = split.with_features(x, {})
    return outputs, variance * (features @ features.T + (1 if split.linear.bias is not None else 0))


@pytest.mark.parametrize("joint", [True, False])
def test_constant_is_white_with_its_variance(make, joint):
    net, x = make("mlp", 5)
    p = bound(Constant(2.5), net, x)[1].gaussian(x)
    p = p.joint() if joint else p
    size = 10 if joint else 5
    assert p.mean.shape == ((10, 1) if joint else (5, 2)) and not p.mean.any()
    torch.testing.assert_close(p.covariance, 2.5 * torch.eye(size)[None])


@pytest.mark.parametrize("name", ["mlp", "no_bias", "batch_norm", "transformer"])
def test_induced_is_the_linearised_random_network(make, name):
    net, x = make(name, 6)
    _, prior = bound(Induced(variance=0.7), net, x)
    mean, covariance = last_layer_moments(prior.net, 0.7, x)
    p = prior.gaussian(x)
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.covariance, covariance.expand_as(p.covariance))
    assert all(torch.equal(prior.net.get_parameter(n), value) for n, value in prior.q.means().items())


def test_feature_variance_makes_the_prior_random_and_wider(make):
    net, x = make("mlp", 4)
    _, prior = bound(Induced(feature_variance=0.1), net, x)
    draws = [prior.gaussian(x).mean for _ in range(2)]
    assert not torch.allclose(*draws)
    stds = prior.q.stds()
    assert {name: round(float(std.mean()) ** 2, 6) for name, std in stds.items()} == {
        "0.weight": 0.1,
        "0.bias": 0.1,
        "2.weight": 1.0,
        "2.bias": 1.0,
    }
    wide, narrow = (bound(Induced(feature_variance=v), net, x, "exact")[1].gaussian(x) for v in (0.1, 0.0))
    narrow = narrow.joint()
    torch.testing.assert_close(wide.mean, narrow.mean)
    excess = wide.covariance[0] - narrow.covariance[0]
    assert torch.linalg.eigvalsh(excess).min() > -1e-9 and excess.trace() > 0.1


def test_induced_has_batch_norm_statistics_of_its_own(make):
    """Those of the training inputs under the random weights, of the latest where there were others before."""
    net, _ = make("batch_norm")
    before = {name: b.clone() for name, b in net.named_buffers()}
    _, prior = bound(Induced(), net, torch.randn(2, 2, 6, 6, dtype=torch.float64))
    for shift in (0, 3):
        x = shift + 5 * torch.randn(100, 2, 6, 6, dtype=torch.float64)
        prior.prepare(x)
        activations = prior.net[0](x)
        torch.testing.assert_close(prior.net[1].running_mean, activations.mean((0, 2, 3)))
        torch.testing.assert_close(prior.net[1].running_var, activations.var((0, 2, 3)))
    assert all(torch.equal(before[name], b) for name, b in net.named_buffers())


@pytest.mark.parametrize("name", ["mlp", "batch_norm"])
def test_empirical_from_a_network(make, name):
    """Its own outputs, features and running statistics, as they were when the prior was bound."""
    (net, x), (source, _) = make(name, 5), make(name, seed=1)
    source.train()(x + 1)
    mean, covariance = last_layer_moments(source, 0.3, x)
    _, prior = bound(Empirical(source, variance=0.3), net, x)
    with torch.no_grad():
        for p in source.parameters():
            p.zero_()
    p = prior.gaussian(x)
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.covariance, covariance.expand_as(p.covariance))


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_empirical_from_a_method_is_its_posterior(make, stochastic):
    """The previous task's posterior: the function KL of a method to itself as the prior is zero."""
    net, x = make("batch_norm", 5)
    context = fsvi.contexts.Dataset(x)
    settings = dict(stochastic=stochastic, linearize="exact", context=context)
    source = fsvi.FSVI(net, fsvi.Categorical(), **settings)
    source.net.train()(x + 1)
    with torch.no_grad():
        for mean in source.posterior.means().values():
            mean.normal_()
        source.posterior.log_std.normal_(-1)
    method = fsvi.FSVI(make("batch_norm", seed=2)[0], fsvi.Categorical(), prior=Empirical(source), **settings)
    prior = method.prior.q
    for name, std in source.posterior.stds().items():
        torch.testing.assert_close(prior.stds()[name], std)
        torch.testing.assert_close(prior.means()[name], source.posterior.means()[name])
    assert method.function_kl(x) > 1
    method.net.load_state_dict(source.net.state_dict())
    with torch.no_grad():
        method.posterior.log_std.copy_(prior.log_std)
    assert abs(method.function_kl(x)) < 1e-6


@pytest.mark.parametrize("prior", [Induced(), Empirical(None)], ids=["induced", "empirical"])
def test_all_outputs_jointly_are_the_independent_outputs(make, prior):
    """(K·Q, 1) in point-by-point order against (K, Q): the same moments, zero between outputs."""
    net, x = make("mlp", 4)
    _, prior = bound(prior, net, x, "exact")
    apart, joint = prior.gaussian(x), prior.gaussian(x).joint()
    torch.testing.assert_close(joint.mean.reshape(4, 2), apart.mean)
    blocks = joint.covariance[0].reshape(4, 2, 4, 2)
    for q in range(2):
        torch.testing.assert_close(blocks[:, q, :, q], apart.covariance.expand(2, -1, -1)[q])
        torch.testing.assert_close(blocks[:, q, :, 1 - q], torch.zeros(4, 4, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_prior_of_ones_own_needs_gaussian_alone(make):
    """A Gaussian process with a squared-exponential kernel, against torch.distributions."""

    class Kernel(fsvi.priors.Prior):
        def gaussian(self, x, noise=None):
            covariance = (-0.5 * torch.cdist(x, x).square()).exp() + 1e-6 * torch.eye(len(x), dtype=x.dtype)
            factor = torch.linalg.cholesky(covariance)
            return FunctionGaussian(x.new_zeros(len(x), self.num_outputs), factor, x.new_ones(1, len(x)))

    net, x = make("mlp", 5)
    method = fsvi.FSVI(
        net,
        fsvi.Categorical(),
        fsvi.contexts.Dataset(x),
        prior=Kernel(),
        stochastic="last_layer",
        divergence=fsvi.divergences.KL(0.1),
    )
    q = JVP(method.network, method.posterior, x, None)
    eye = torch.eye(5, dtype=torch.float64)
    kernel = (-0.5 * torch.cdist(x, x).square()).exp() + (1e-6 + 0.1) * eye
    p = torch.distributions.MultivariateNormal(torch.zeros(2, 5, dtype=torch.float64), kernel)
    expected = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(q.mean.T, q.covariance + 0.1 * eye), p
    )
    torch.testing.assert_close(method.function_kl(x), expected.sum())


@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
def test_a_random_prior_is_drawn_with_the_noise_it_is_given(make, linearize):
    """All of it, or the part for some parameters; without any, every call is another draw."""
    net, x = make("mlp", 4)
    _, prior = bound(Induced(feature_variance=0.1), net, x, linearize)
    noise = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    draw = prior.q.at(prior.q.layout.flatten(noise))
    expected = LINEARIZERS[linearize](prior.network, prior.q, x, draw).mean
    assert prior.is_random and torch.equal(prior.gaussian(x, noise).mean, expected)
    part = {name: value for name, value in noise.items() if name.startswith("0.w")}
    assert not torch.equal(prior.gaussian(x, part).mean, prior.gaussian(x, part).mean)
    assert not bound(Induced(feature_variance=0.1), net, x, "exact")[1].is_random
