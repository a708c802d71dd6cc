"""GFSVI against exact Gaussian processes, and the linearized network against its Jacobian."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call, jacrev

import fsvi
from fsvi.functions.divergences import RegularizedKL
from fsvi.functions.kernels import Linear, Matern
from fsvi.functions.linearize import last_layer
from fsvi.functions.priors import GaussianProcess
from fsvi_cases import flat_mean, loss_of

NOISE, KERNEL = 0.4, Linear(variance=1.7, bias=0.6)
X = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
Y = torch.tensor([[1.3], [0.2], [-0.8], [0.1]], dtype=torch.float64)
NEW = torch.tensor([[2.0, 0.5], [-1.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
GAMMA = 1e-9


def linear_model(**settings):
    """A model that is linear in its parameters, with the process of the same functions as the prior.

    The columns of the inputs X, and the ones of the bias, are orthogonal, so the exact posterior is mean-field.
    """
    net = nn.Sequential(nn.Linear(2, 1)).double()
    context = fsvi.contexts.Dataset(torch.cat([X, NEW]))
    usual = {"prior": GaussianProcess(kernel=KERNEL), "divergence": RegularizedKL(GAMMA), "num_context": 7}
    return fsvi.GFSVI(net, fsvi.Gaussian(NOISE), context, **{**usual, **settings})


def exact_process(x):
    """Mean and covariance of the Gaussian process's posterior at `x`."""
    both = KERNEL(torch.cat([x, X]))
    cross, own = both[: len(x), len(x) :], both[: len(x), : len(x)]
    gram = both[len(x) :, len(x) :] + NOISE**2 * torch.eye(len(X), dtype=torch.float64)
    return cross @ torch.linalg.solve(gram, Y), own - cross @ torch.linalg.solve(gram, cross.T)


def exact_weights():
    """Mean and variance of the posterior over slopes and bias."""
    design = torch.cat([X, torch.ones_like(X[:, :1])], dim=1)
    prior = torch.tensor([1.7, 1.7, 0.6], dtype=torch.float64)
    precision = design.T @ design / NOISE**2 + torch.diag(1 / prior)
    return torch.linalg.solve(precision, design.T @ Y / NOISE**2).flatten(), 1 / precision.diagonal()


def without_sampling_error(method):
    """Two function values at every example, mean ± deviation: the expectation of a quadratic, exactly."""

    def values(x, draws):
        f = last_layer(method.network, method.posterior, *method.network.with_features(x))
        deviation = f.variance().T.sqrt()
        return torch.stack([f.mean - deviation, f.mean + deviation])

    method._values_at = values
    return method


# The exact posterior --------------------------------------------------------------------------------------------------


def test_at_the_exact_posterior_the_loss_is_minus_the_log_evidence_per_example():
    method = without_sampling_error(linear_model())
    mean, variance = exact_weights()
    with torch.no_grad():
        for own, part in zip(method.net.parameters(), method.posterior.layout.views(mean).values(), strict=True):
            own.copy_(part)
        method.posterior.log_std.copy_(0.5 * variance.log())
    gram = KERNEL(X) + NOISE**2 * torch.eye(4, dtype=torch.float64)
    evidence = MultivariateNormal(torch.zeros(4, dtype=torch.float64), gram).log_prob(Y[:, 0])
    torch.testing.assert_close(loss_of(method, X, Y), -evidence / 4, rtol=1e-5, atol=0)


def test_training_reaches_the_exact_gaussian_process():
    method = without_sampling_error(linear_model())
    fsvi.fit(method, (X, Y), epochs=150, lr=0.1)
    mean, covariance = exact_process(NEW)
    q = method.posterior
    design = torch.cat([NEW, torch.ones_like(NEW[:, :1])], dim=1)
    torch.testing.assert_close(design @ flat_mean(q)[:, None], mean, rtol=1e-3, atol=1e-3)
    found = design @ torch.diag((2 * q.log_std.detach()).exp()) @ design.T
    torch.testing.assert_close(found, covariance, rtol=1e-3, atol=1e-3)
    draws = method.predict(NEW, 5000).samples[..., 0]
    torch.testing.assert_close(draws.mean(0)[:, None], mean, rtol=0, atol=0.05)
    torch.testing.assert_close(draws.T.cov(), covariance, rtol=0.1, atol=0.02)


def test_with_a_large_regularizer_the_prior_counts_less():
    mild, strong = (linear_model(divergence=RegularizedKL(gamma)) for gamma in (1e-6, 1e3))
    assert float(strong.function_kl(NEW).detach()) < 1e-2 * float(mild.function_kl(NEW).detach())


# The linearized network -----------------------------------------------------------------------------------------------


def explicit(method, net, x, shift):
    """f(x; m) + J(x)·shift by the whole Jacobian."""
    layout, mean = method.posterior.layout, flat_mean(method.posterior)
    call = lambda values: functional_call(net, layout.views(values), (x,))  # noqa: E731
    return call(mean) + jacrev(call)(mean) @ shift


@pytest.mark.parametrize("name", ["mlp", "no_bias", "depthwise", "gru"])
def test_draws_are_those_of_the_linearized_network(make, name):
    net, x = make(name, 3)
    method = fsvi.GFSVI(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(0.5))
    noise = torch.randn_like(flat_mean(method.posterior))
    method.posterior.noise = lambda generator=None: noise
    expected = explicit(method, net, x, 0.5 * noise).detach()
    torch.testing.assert_close(method.predict(x, 1).samples[0], expected.softmax(-1))
    likelihood = fsvi.Categorical().nll(expected, torch.tensor([0, 1, 1]))
    method.context = fsvi.contexts.Dataset(x)
    torch.testing.assert_close(method(x, torch.tensor([0, 1, 1]))["nll"], likelihood)


def test_the_divergence_is_that_of_the_linearized_network_and_the_process(make):
    net, x = make("mlp", 5)
    prior = GaussianProcess(kernel=Matern(1.5, 0.8))
    method = fsvi.GFSVI(
        net, fsvi.Categorical(), prior=prior, divergence=RegularizedKL(0.01), stds=fsvi.posteriors.Stds(0.3)
    )
    layout, mean = method.posterior.layout, flat_mean(method.posterior)
    jacobian = jacrev(lambda values: functional_call(net, layout.views(values), (x,)).T.reshape(-1))(mean)
    eye = torch.eye(10, dtype=torch.float64)
    q = MultivariateNormal(net(x).T.reshape(-1), 0.09 * jacobian @ jacobian.T + 0.05 * eye)
    covariance = torch.block_diag(*[Matern(1.5, 0.8)(x)] * 2) + 0.05 * eye
    p = MultivariateNormal(torch.zeros(10, dtype=torch.float64), covariance)
    torch.testing.assert_close(method.function_kl(x), torch.distributions.kl_divergence(q, p))


# Use ------------------------------------------------------------------------------------------------------------------


def test_beyond_the_data_it_is_unsure():
    torch.manual_seed(0)
    x = torch.linspace(-2, 0, 20)[:, None]
    y = (2 * x).sin() + 0.1 * torch.randn_like(x)
    context = fsvi.contexts.Uniform([-3.0], [3.0])
    prior = GaussianProcess(kernel=Matern(2.5, 0.7))
    net = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1))
    method = fsvi.GFSVI(net, fsvi.Gaussian(0.1), context, prior=prior, num_context=12)
    fsvi.fit(method, (x, y), epochs=200, lr=0.05)
    near, far = method.predict(x).samples.std(0), method.predict(torch.tensor([[2.5]])).samples.std(0)
    assert float((method.predict(x).mean - y).square().mean()) < 0.05
    assert float(far) > 3 * float(near.mean())


def test_the_default_process_is_fitted_in_regression_only():
    net = nn.Linear(2, 2)
    assert fsvi.GFSVI(net, fsvi.Gaussian()).prior.learn and not fsvi.GFSVI(net, fsvi.Categorical()).prior.learn


def test_a_kernel_whose_columns_do_not_fit_is_refused():
    method = linear_model(prior=GaussianProcess(kernel=Matern(lengthscale=[1.0, 1.0, 1.0])))
    with pytest.raises(fsvi.errors.InvalidInputError, match="columns"):
        fsvi.fit(method, (X, Y), epochs=1)


def test_a_tied_last_layer_is_refused(make):
    net, x = make("tied_head")
    with pytest.raises(fsvi.errors.HeadError, match="untie"):
        fsvi.GFSVI(net, fsvi.Categorical()).predict(x)
