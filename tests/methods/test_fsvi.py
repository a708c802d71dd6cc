import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.func import functional_call, jacrev

import fsvi
from fsvi import contexts
from fsvi.errors import HeadError, InvalidInputError, SingularCovarianceError
from fsvi.functions.priors import Constant, Empirical, Induced

NUGGET = 1e-2
MODES = ["jvp", "conditional", "exact"]
LABELS = torch.tensor([0, 1, 1, 0])


class Listed(contexts.Context):
    """The given sets, one after the other, again and again."""

    def __init__(self, *sets):
        self.sets = itertools.cycle(sets)

    def sample(self, num, batch):
        return next(self.sets)


def fsvi_on(net, x, likelihood=None, **settings):
    """FSVI in float64 with random standard deviations around 0.1."""
    settings = {"context": contexts.Dataset(x), "num_context": len(x), "nugget": NUGGET, **settings}
    method = fsvi.FSVI(net, likelihood or fsvi.Categorical(), **settings)
    with torch.no_grad():
        method.posterior.log_std.normal_(math.log(0.1), 0.5)
    return method


def fix_noise(method, *noises):
    """Make the posterior draw these, one after the other, again and again; a random one if none is given."""
    cycle = itertools.cycle(noises or [torch.randn_like(method.posterior.mean)])
    method.posterior.noise = lambda generator=None: next(cycle)
    return method.posterior.shift(next(cycle)).detach()


# The oracle: an explicit Jacobian and torch.distributions -------------------------------------------------------------


def explicit(net, means, stds, x):
    """N(f(X; μ), J S Jᵀ + nugget·I) over all K·Q values, J by reverse mode over the parameters in `stds`."""
    net = copy.deepcopy(net).eval()

    def outputs(moving):
        return functional_call(net, {**means, **moving}, (x,)).reshape(-1)

    blocks = jacrev(outputs)({name: means[name] for name in stds})
    jacobian = torch.cat([blocks[name].flatten(1) for name in stds], dim=1)
    variances = torch.cat([std.reshape(-1).square() for std in stds.values()])
    eye = torch.eye(len(jacobian), dtype=torch.float64)
    return MultivariateNormal(outputs({}), jacobian * variances @ jacobian.T + NUGGET * eye)


def explicit_prior(method, x):
    if isinstance(method.prior, Constant):
        size = len(x) * method.num_outputs
        covariance = (method.prior.variance + NUGGET) * torch.eye(size, dtype=torch.float64)
        return MultivariateNormal(torch.zeros(size, dtype=torch.float64), covariance)
    return explicit(method.net, method.prior.q.means(), method.prior.q.stds(), x)


def without_correlations(joint):
    return Normal(joint.mean, joint.variance.sqrt())


PRIORS = {
    "constant": lambda make, name: Constant(2.0),
    "induced": lambda make, name: Induced(0.7),
    "induced_all": lambda make, name: Induced(0.7, feature_variance=0.01),
    "empirical": lambda make, name: Empirical(make(name, seed=5)[0], 0.5),
}


@pytest.mark.parametrize("num", [3, 9], ids=["K<F+1", "K>F+1"])
@pytest.mark.parametrize("prior", ["constant", "induced", "empirical"])
@pytest.mark.parametrize("name", ["mlp", "no_bias"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_last_layer_kl_equals_the_explicit_jacobians(make, name, prior, num, covariance):
    net, x = make(name, num)
    kls = []
    for linearize in MODES:
        torch.manual_seed(1)
        method = fsvi_on(
            net, x, prior=PRIORS[prior](make, name), stochastic="last_layer", covariance=covariance, linearize=linearize
        )
        kls.append(method.function_kl(x))
    q = explicit(method.net, method.posterior.means(), method.posterior.stds(), x)
    p = explicit_prior(method, x)
    if covariance == "diagonal":
        q, p = without_correlations(q), without_correlations(p)
    expected = kl_divergence(q, p).sum()
    for kl in kls:
        torch.testing.assert_close(kl, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("name", "num"), [("mlp", 3), ("one_output", 9), ("tied_features", 3), ("tied_head", 3)])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_exact_kl_equals_the_explicit_jacobians(make, name, num, prior, covariance):
    """Joint over K·Q values; `one_output` has fewer parameters than values, the Woodbury branch."""
    net, x = make(name, num)
    method = fsvi_on(net, x, prior=PRIORS[prior](make, name), linearize="exact", covariance=covariance)
    q = explicit(method.net, method.posterior.means(), method.posterior.stds(), x)
    p = explicit_prior(method, x)
    if covariance == "diagonal":
        q, p = without_correlations(q), without_correlations(p)
    torch.testing.assert_close(method.function_kl(x), kl_divergence(q, p).sum(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
@pytest.mark.parametrize("num", [3, 9], ids=["K<F+1", "K>F+1"])
def test_kl_at_a_draw_of_the_features(make, linearize, num):
    """`jvp`: mean f(X; μ) + J_α(α − μ_α), covariance at the means; `conditional`: both at the draw."""
    net, x = make("mlp", num)
    method = fsvi_on(net, x, prior=Constant(2.0), linearize=linearize)
    shift = method.posterior.layout.views(fix_noise(method))
    means, stds = method.posterior.means(), method.posterior.stds()
    head = {name: std for name, std in stds.items() if name in method.split.head_names}
    drawn = {name: mean + (0 if name in head else shift[name]) for name, mean in means.items()}
    if linearize == "conditional":
        q = explicit(method.net, drawn, head, x)
    else:
        moved = {name: means[name] for name in stds if name not in head}
        blocks = jacrev(lambda moving: functional_call(method.net, {**means, **moving}, (x,)).reshape(-1))(moved)
        change = sum(blocks[name].flatten(1) @ shift[name].reshape(-1) for name in moved)
        at_means = explicit(method.net, means, head, x)
        q = MultivariateNormal(at_means.mean + change, at_means.covariance_matrix)
    expected = kl_divergence(q, explicit_prior(method, x))
    torch.testing.assert_close(method.function_kl(x), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
def test_several_feature_draws_are_averaged(make, linearize):
    net, x = make("mlp")
    method = fsvi_on(net, x, linearize=linearize)
    noises = torch.randn(3, *method.posterior.mean.shape, dtype=torch.float64)
    single = []
    for noise in noises:
        fix_noise(method, noise)
        single.append(method.function_kl(x))
    method.num_feature_draws = 3
    method.posterior.noise = iter(noises).__next__
    torch.testing.assert_close(method.function_kl(x), torch.stack(single).mean())


# Properties of the KL -------------------------------------------------------------------------------------------------


def test_invertible_features_give_the_parameters_kl_and_more_points_more(make):
    """A linear model with 3 inputs and a bias: 4 points in general position determine the parameters."""
    net, x = make("linear", 4)
    source, _ = make("linear", seed=5)
    method = fsvi_on(net, x, prior=Empirical(source, 0.3), nugget=0.0)
    q, prior = method.posterior, dict(source.named_parameters())
    parameter_kl = sum(
        kl_divergence(Normal(q.means()[n], std), Normal(prior[n], math.sqrt(0.3))).sum() for n, std in q.stds().items()
    )
    kls = torch.stack([method.function_kl(x[:num]) for num in (1, 2, 3, 4)])
    assert (kls.diff() > 0.01).all() and kls[0] > 0
    torch.testing.assert_close(kls[-1], parameter_kl, rtol=1e-8, atol=1e-8)


def test_points_beyond_the_features_add_nothing(make):
    """The KL of a linear model has reached the parameters' at 4 points; the nugget's share vanishes with it."""
    net, x = make("linear", 9)
    method = fsvi_on(net, x, prior=Empirical(make("linear", seed=5)[0], 0.3), nugget=1e-9)
    torch.testing.assert_close(method.function_kl(x), method.function_kl(x[:4]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("prior", ["constant", "induced"])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_the_kl_grows_with_the_context_set(make, prior, covariance):
    """Data processing: a smaller set is a marginal of the larger, nugget and all."""
    net, x = make("mlp", 10)
    method = fsvi_on(net, x, prior=PRIORS[prior](make, "mlp"), stochastic="last_layer", covariance=covariance)
    kls = torch.stack([method.function_kl(x[:num]) for num in range(1, 11)])
    assert kls[0] > 0 and (kls.diff() > -1e-9).all()


@pytest.mark.parametrize("linearize", MODES)
def test_the_prior_itself_has_no_kl(make, linearize):
    net, x = make("mlp", 9)
    method = fsvi_on(
        net, x, prior=Empirical(net, 0.49), stochastic="last_layer", init_std=(0.1, 0.7), linearize=linearize
    )
    assert method.function_kl(x) > 1
    method.posterior.set_stds(dict.fromkeys(method.split.head_names, 0.7))
    assert abs(method.function_kl(x)) < 1e-6


def test_in_last_layer_mode_the_kl_is_not_random(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, stochastic="last_layer")
    assert torch.equal(method.function_kl(x), method.function_kl(x))
    method = fsvi_on(net, x, stochastic="all")
    assert not torch.equal(method.function_kl(x), method.function_kl(x))


def test_without_a_nugget_too_many_points_are_named_singular(make):
    net, x = make("mlp", 9)
    method = fsvi_on(net, x, stochastic="last_layer", nugget=0.0)
    with pytest.raises(SingularCovarianceError, match=r"9×9.*nugget"):
        method.function_kl(x)


# The worst of several context sets ------------------------------------------------------------------------------------


def by_output(joint, points, outputs):
    """The marginals of a joint Gaussian over points × outputs, one for each output."""
    blocks = joint.covariance_matrix.reshape(points, outputs, points, outputs).diagonal(dim1=1, dim2=3)
    return MultivariateNormal(joint.mean.reshape(points, outputs).T, blocks.permute(2, 0, 1))


def test_the_largest_of_several_sets_is_the_max_of_sums(make):
    """Output k reads input k alone: a set along each input is the worst for its output, one between them in sum."""
    net, x = make("linear")
    with torch.no_grad():
        net[0].weight.copy_(3 * torch.eye(2, 3))
    steps, axes = torch.arange(1.0, 4).double()[:, None], torch.eye(3, dtype=torch.float64)
    sets = [steps * axes[0], steps * 0.8 * (axes[0] + axes[1]), steps * axes[1]]
    method = fsvi_on(net, x, context=Listed(*sets), prior=Constant(2.0), num_context_sets=3, kl_weight=1.0)
    means, stds = method.posterior.means(), method.posterior.stds()
    pairs = [(explicit(method.net, means, stds, each), explicit_prior(method, each)) for each in sets]
    kls = torch.stack([kl_divergence(*(by_output(joint, 3, 2) for joint in pair)) for pair in pairs])
    assert kls.max(0).values.sum() > kls.sum(1).max() + 1, "the example does not tell the two apart"
    torch.testing.assert_close(method.terms(x, LABELS)["kl"], kls.sum(1).max(), rtol=1e-8, atol=1e-8)


def test_a_random_prior_is_drawn_once_for_every_set(make, monkeypatch):
    """The largest KL is the one that is differentiated, not another draw of the prior at its set."""
    net, x = make("mlp", 4)
    method = fsvi_on(net, x, prior=Induced(feature_variance=0.5), num_context_sets=3, kl_weight=1.0)
    values, divergence = [], fsvi.methods.fsvi.gaussian_kl
    monkeypatch.setattr(fsvi.methods.fsvi, "gaussian_kl", lambda *args: values.append(divergence(*args)) or values[-1])
    method.terms(x, LABELS)
    assert len(values) == 4
    torch.testing.assert_close(values[3], max(values[:3]))


@pytest.mark.parametrize("linearize", MODES)
def test_the_gradient_is_the_worst_sets(make, linearize):
    """One draw of the features serves all sets, and averages over R come before the max."""
    net, points = make("mlp", 12)
    x, sets = points[:4], points.split(3)
    settings = dict(num_context_sets=4, num_feature_draws=2, kl_weight=1.0)
    method = fsvi_on(net, x, context=Listed(*sets), linearize=linearize, **settings)
    noises = torch.randn(2, *method.posterior.mean.shape, dtype=torch.float64)
    kls = []
    for each in sets:
        method.posterior.noise = itertools.cycle(noises).__next__
        kls.append(method.function_kl(each))
    method.posterior.noise = iter(noises).__next__
    worst = max(kls)
    kl = method.terms(x, LABELS)["kl"]
    torch.testing.assert_close(kl, worst)
    parameters = [method.posterior.mean, method.posterior.log_std]
    for ours, theirs in zip(torch.autograd.grad(kl, parameters), torch.autograd.grad(worst, parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


# The loss -------------------------------------------------------------------------------------------------------------


def test_the_likelihood_term_uses_draws_of_the_real_network(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, num_samples=3)
    q = method.posterior
    noises = torch.randn(3, *q.mean.shape, dtype=torch.float64)
    q.noise = itertools.cycle(noises).__next__
    shifts = [q.layout.views(q.shift(noise)) for noise in noises]
    draws = [{name: mean + shift.get(name, 0) for name, mean in q.means().items()} for shift in shifts]
    outputs = torch.stack([functional_call(method.net, draw, (x,)) for draw in draws])
    expected = -torch.distributions.Categorical(logits=outputs).log_prob(LABELS).mean()
    torch.testing.assert_close(method.terms(x, LABELS)["nll"], expected)


@pytest.mark.parametrize("name", ["mlp", "no_bias"])
def test_with_a_stochastic_last_layer_each_example_is_drawn_from_its_own_marginal(make, monkeypatch, name):
    """Mean f(x; μ) and variance diag(J S Jᵀ), by the explicit Jacobian."""
    net, x = make(name)
    method = fsvi_on(net, x, stochastic="last_layer", num_samples=3)
    q = explicit(method.net, method.posterior.means(), method.posterior.stds(), x)
    shape = (len(x), method.num_outputs)
    mean, std = q.mean.reshape(shape), (q.variance - NUGGET).sqrt().reshape(shape)
    noise = torch.randn(3, *shape, dtype=torch.float64)
    monkeypatch.setattr(torch, "randn", lambda size, **_: noise.reshape(size))
    expected = -torch.distributions.Categorical(logits=mean + std * noise).log_prob(LABELS).mean()
    torch.testing.assert_close(method.terms(x, LABELS)["nll"], expected)


def test_features_of_zero_leave_the_gradient_finite():
    """Without a bias such an example has no variance, where the square root has no derivative."""
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    nn.init.constant_(net[0].bias, -9.0)
    method = fsvi.FSVI(net, fsvi.Categorical(), contexts.Batch(), num_context=2, stochastic="last_layer")
    method.loss(torch.rand(5, 2), torch.tensor([0, 1, 2, 0, 1])).backward()
    assert method.posterior.log_std.grad.isfinite().all()
    assert method.posterior.point.grad.isfinite().all()


def test_the_weight_is_one_over_n_unless_given(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, stochastic="last_layer")
    kl = method.function_kl(x)
    torch.testing.assert_close(method.terms(x, LABELS)["kl"], kl / 4)
    method.begin(x, 1000)
    torch.testing.assert_close(method.terms(x, LABELS)["kl"], kl / 1000)
    method.kl_weight = 0.3
    torch.testing.assert_close(method.terms(x, LABELS)["kl"], 0.3 * kl)


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_the_loss_is_the_sum_of_its_terms(make, stochastic):
    net, x = make("mlp")
    method = fsvi_on(net, x, stochastic=stochastic)
    torch.manual_seed(0)
    loss = method.loss(x, LABELS)
    torch.manual_seed(0)
    torch.testing.assert_close(loss, sum(method.terms(x, LABELS).values()))


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "transformer", "lstm", "group_norm"])
def test_the_gradient_of_the_loss(make, name, linearize, covariance):
    """In a random direction of all learned parameters, against central differences."""
    net, x = make(name)
    method = fsvi_on(net, x, linearize=linearize, covariance=covariance, num_context=3, context=Listed(x[:3] + 0.1))
    fix_noise(method)
    parameters = [p for group in method.parameter_groups(1.0) for p in group["params"]]
    directions = [torch.randn_like(p) for p in parameters]
    method.eval()
    method.loss(x, LABELS).backward()
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True))
    ends = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(step * d)
            ends.append(method.loss(x, LABELS))
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_context_points_are_drawn_anew_at_every_step(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, context=contexts.Uniform([-1] * 3, [1] * 3), stochastic="last_layer")
    kls = [method.terms(x, LABELS)["kl"] for _ in range(2)]
    assert kls[0] != kls[1]
    assert method.draw_context(x).shape == (4, 3)


# Linear-Gaussian regression: the exact posterior ----------------------------------------------------------------------

NOISES, PRIOR_VARIANCE = [0.3, 0.7], 0.8


def regression(design):
    """A network linear in its trainable parameters, data, and [Φ, 1] at the data."""
    torch.manual_seed(2)
    if design == "features":
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        net[0].requires_grad_(False)
        x = 2 * torch.randn(12, 2, dtype=torch.float64)
        features = torch.tanh(net[0](x))
    else:
        net = nn.Sequential(nn.Linear(3, 2)).double()
        cube = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)), dtype=torch.float64)
        features = x = (
            cube * torch.tensor([0.5, 1, 2]) if design == "orthogonal" else torch.randn(9, 3).double().cumsum(1)
        )
    y = torch.randn(len(x), 2, dtype=torch.float64)
    return net, x, y, torch.cat([features, torch.ones_like(x[:, :1])], dim=1)


def exact_posterior(net, design, y):
    """Mean (F+1, Q), precision (Q, F+1, F+1) and log evidence of linear regression with `net` as the prior mean."""
    start = torch.cat([net[-1].weight.T, net[-1].bias[None]]).detach()
    noise = torch.tensor(NOISES, dtype=torch.float64).square()
    eye = torch.eye(len(start), dtype=torch.float64)
    precision = design.T @ design / noise[:, None, None] + eye / PRIOR_VARIANCE
    right = (design.T @ y / noise + start / PRIOR_VARIANCE).T
    mean = torch.linalg.solve(precision, right).T
    covariance = noise[:, None, None] * torch.eye(len(y)) + PRIOR_VARIANCE * design @ design.T
    evidence = MultivariateNormal((design @ start).T, covariance).log_prob(y.T).sum()
    return mean, precision, evidence


def last_layer(tensors):
    weight, bias = list(tensors.values())[-2:]
    return torch.cat([weight.T, bias[None]])


@pytest.mark.parametrize("design", ["orthogonal", "correlated", "features"])
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_linear_gaussian_regression_reaches_the_exact_posterior(design, stochastic, monkeypatch):
    """The function KL at F+1 spanning points is the parameters', so the loss is −ELBO/N. The mean-field optimum has the
    exact mean and variances 1/Λᵢᵢ; with an orthogonal design these are the marginals, and the ELBO the log evidence.
    Draws one standard deviation above and below make the expectation of a quadratic exact."""
    net, x, y, features = regression(design)
    settings = dict(prior=Empirical(net, PRIOR_VARIANCE), stochastic=stochastic, nugget=0.0)
    method = fsvi_on(
        net, x, fsvi.Gaussian(NOISES), context=contexts.Dataset(x[[0, 1, 2, 4]]), num_context=4, **settings
    )
    q = method.posterior
    method.num_samples = 2
    method.loss(x, y)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    monkeypatch.setattr(torch, "randn", lambda size, **_: signs.expand(size))
    optimizer = torch.optim.LBFGS(
        [q.mean, q.log_std], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-14
    )

    def closure():
        optimizer.zero_grad()
        loss = method.loss(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    mean, precision, evidence = exact_posterior(net, features, y)
    torch.testing.assert_close(last_layer(q.means()), mean, rtol=1e-4, atol=1e-4)
    variances = 1 / precision.diagonal(dim1=1, dim2=2).T
    torch.testing.assert_close(last_layer(q.stds()).square(), variances, rtol=1e-3, atol=1e-6)
    elbo = -len(x) * closure().detach()
    if design == "orthogonal":
        torch.testing.assert_close(variances, precision.inverse().diagonal(dim1=1, dim2=2).T)
        torch.testing.assert_close(elbo, evidence, rtol=1e-5, atol=1e-5)
    else:
        assert elbo < evidence - 0.01


def test_fit_finds_the_exact_posterior_from_random_draws():
    """The same by `fit`, with the sampling noise of its last steps as the tolerance."""
    net, x, y, features = regression("orthogonal")
    settings = dict(num_context=8, num_samples=16, nugget=1e-6, init_std=(0.1, 0.1), log_std_lr_scale=1.0)
    method = fsvi.FSVI(net, fsvi.Gaussian(NOISES), contexts.Dataset(x), Empirical(net, PRIOR_VARIANCE), **settings)
    fsvi.fit(method, (x, y), epochs=150, lr=0.1, schedule=fsvi.cosine(0.001))
    mean, precision, _ = exact_posterior(net, features, y)
    stds = precision.diagonal(dim1=1, dim2=2).T.rsqrt()
    assert ((last_layer(method.posterior.means()) - mean) / stds).abs().max() < 0.25
    torch.testing.assert_close(last_layer(method.posterior.stds()), stds, rtol=0.15, atol=0)
    p = method.predict(x, num_samples=4000)
    variance = torch.einsum("nf,qfg,ng->nq", features, precision.inverse(), features)
    assert ((p.mean - features @ mean) / variance.sqrt()).abs().max() < 0.25
    torch.testing.assert_close(p.function_variance, variance, rtol=0.3, atol=0)


# Prediction -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
@pytest.mark.parametrize("name", ["mlp", "no_bias", "dropout", "batch_norm", "transformer", "lstm"])
def test_draws_go_through_the_real_network_in_eval_mode(make, name, stochastic):
    net, x = make(name)
    method = fsvi_on(net, x, stochastic=stochastic).train()
    generator = torch.Generator().manual_seed(3)
    q = method.posterior
    shifts = [q.layout.views(q.shift(q.noise(generator))) for _ in range(5)]
    frozen = copy.deepcopy(method.net).eval()
    draws = [{n: mean + shift.get(n, 0) for n, mean in q.means().items()} for shift in shifts]
    expected = torch.stack([functional_call(frozen, draw, (x,)) for draw in draws]).softmax(-1)
    p = method.predict(x, num_samples=5, seed=3)
    torch.testing.assert_close(p.samples, expected)
    assert method.net.training and not p.samples.requires_grad
    assert all(torch.equal(b, method.net.get_buffer(n)) for n, b in frozen.named_buffers())


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "transformer"])
def test_predictions_do_not_depend_on_the_batch_size(make, name, stochastic):
    net, x = make(name, 11)
    method = fsvi_on(net, x, stochastic=stochastic)
    whole = method.predict(x, num_samples=6).samples
    for batch_size in (1, 4, 11):
        torch.testing.assert_close(method.predict(x, num_samples=6, batch_size=batch_size).samples, whole)
    torch.testing.assert_close(method.predict(x[3:5], num_samples=6).samples, whole[:, 3:5])
    assert not torch.allclose(method.predict(x, num_samples=6, seed=1).samples, whole)


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_the_monte_carlo_error_falls_as_the_root_of_the_number_of_draws(stochastic):
    """Of two linear layers in a row the mean output is known: the product of the means. Slope of log error, −½."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    x = torch.randn(8, 3, dtype=torch.float64)
    method = fsvi_on(net, x, fsvi.Gaussian(0.1), stochastic=stochastic)
    nums = [4, 16, 64]
    errors = [
        torch.stack([method.predict(x, num, seed=seed).mean - net(x) for seed in range(20)]).square().mean().sqrt()
        for num in nums
    ]
    logs = torch.stack([torch.tensor(nums).double().log(), torch.stack(errors).detach().log()])
    slope = torch.cov(logs)[0, 1] / logs[0].var()
    assert slope == pytest.approx(-0.5, abs=0.1)


# BatchNorm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "linearize", "stochastic"),
    [
        *(("batch_norm", mode, stochastic) for mode in MODES for stochastic in ("all", "last_layer")),
        ("resnet18", "jvp", "all"),
        ("resnet18", "conditional", "last_layer"),
    ],
)
def test_a_step_leaves_running_statistics_as_the_likelihood_pass_alone(make, name, linearize, stochastic):
    net, x = make(name)
    net, x = net.float(), x.float()
    settings = dict(prior=Induced(), num_context=2, num_context_sets=2, context=Listed(x[:2] + 5, x[:2] - 5))
    method = fsvi_on(net, x, linearize=linearize, stochastic=stochastic, **settings).train()
    shift = fix_noise(method)
    alone = copy.deepcopy(method.net)
    functional_call(alone, method.posterior.params(shift), (method.arranged(x),))
    before = {name: b.clone() for name, b in method.net.named_buffers()}
    method.loss(x, LABELS).backward()
    for name, buffer in method.net.named_buffers():
        assert torch.equal(buffer, alone.get_buffer(name)) and not torch.equal(buffer, before[name])


@pytest.mark.parametrize("linearize", MODES)
def test_a_train_mode_pass_between_forward_and_backward_changes_no_gradient(make, linearize):
    """BatchNorm's backward reads the running statistics; other code may update them in the meantime."""
    net, x = make("batch_norm")
    start = {n: b.clone() for n, b in net.named_buffers()}
    method = fsvi_on(net, x, linearize=linearize).train()
    fix_noise(method)

    def gradients(disturb):
        method.net.load_state_dict(start, strict=False)
        method.zero_grad()
        loss = method.loss(x, LABELS)
        if disturb:
            method.net(10 + 10 * x)
        loss.backward()
        return [p.grad.clone() for p in (method.posterior.mean, method.posterior.log_std, method.posterior.point)]

    for ours, disturbed in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(ours, disturbed, rtol=1e-12, atol=1e-12)


def test_batch_norm_affine_parameters_are_points_that_learn(make):
    net, x = make("batch_norm")
    method = fsvi_on(net, x)
    assert set(method.posterior.stds()) == {"0.weight", "0.bias", "3.weight", "3.bias", "6.weight", "6.bias"}
    fsvi.fit(method, (x, LABELS), epochs=2, lr=0.1)
    assert not torch.equal(method.posterior.means()["1.weight"], net[1].weight)


# What a user brings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_frozen_parameters_stay_as_they_are(make, linearize, stochastic):
    net, x = make("mlp")
    net[0].weight.requires_grad_(False)
    method = fsvi_on(net, x, linearize=linearize, stochastic=stochastic)
    fsvi.fit(method, (x, LABELS), epochs=3, lr=0.1)
    assert "0.weight" not in method.posterior.stds()
    assert torch.equal(method.posterior.means()["0.weight"], net[0].weight)
    assert torch.equal(method.net[0].weight, net[0].weight)
    assert not torch.equal(method.posterior.means()["0.bias"], net[0].bias)


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_dropout_acts_on_the_likelihood_and_not_on_the_kl(make, linearize, stochastic):
    net, x = make("dropout")
    method = fsvi_on(net, x, linearize=linearize, stochastic=stochastic).train()
    fix_noise(method)
    kls = [method.function_kl(x), method.function_kl(x), method.eval().function_kl(x)]
    assert kls[0] == kls[1] == kls[2]
    method.train()
    terms = [method.terms(x, LABELS) for _ in range(2)]
    assert terms[0]["nll"] != terms[1]["nll"] and torch.isclose(terms[0]["kl"], terms[1]["kl"])


@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
@pytest.mark.parametrize(
    "name", ["tied_features", "transformer_dropout", "gru", "layer_norm", "depthwise", "head_first"]
)
def test_a_few_steps_move_every_parameter(make, name, linearize):
    net, x = make(name)
    method = fsvi_on(net, x, linearize=linearize, init_std=(0.1, 0.1))
    fsvi.fit(method, (x, LABELS), epochs=3, lr=0.01)
    means = method.posterior.means()
    still = [n for n, p in net.named_parameters() if torch.equal(means[n], p) or not means[n].isfinite().all()]
    assert still == []
    assert all(torch.equal(means[n], p) for n, p in method.net.named_parameters()), "fit leaves the means in net"


def test_the_network_given_is_not_changed(make):
    net, x = make("batch_norm")
    before = {n: t.clone() for n, t in net.state_dict().items()}
    fsvi.fit(fsvi_on(net, x), (x, LABELS), epochs=2)
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())


def test_a_wrong_guess_of_the_head_is_mended_when_data_comes(make):
    net, x = make("head_first")
    method = fsvi.FSVI(
        net, fsvi.Gaussian(0.1), contexts.Batch(), prior=Induced(), stochastic="last_layer", num_context=2
    )
    assert method.split.head == "body"
    method.loss(x, torch.randn(4, 2))
    assert method.split.head == "fc" and set(method.posterior.stds()) == {"fc.weight", "fc.bias"}
    assert method.likelihood.noise.shape == (2,) and method.prior.split.head == "fc"


def test_the_memory_layout_changes_nothing_but_speed(make):
    net, x = make("depthwise")
    values = []
    for channels_last in (True, False):
        method = fsvi_on(net, x, channels_last=channels_last, prior=Induced(0.5, 0.1), linearize="exact")
        method.posterior.set_stds(dict.fromkeys(method.posterior.stds(), 0.1))
        values.append((method.function_kl(x), method.net(method.arranged(x))))
    torch.testing.assert_close(*values)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        (dict(num_context=0), InvalidInputError, "num_context=0"),
        (dict(num_context_sets=0), InvalidInputError, "num_context_sets=0"),
        (dict(num_samples=1.5), InvalidInputError, "num_samples=1.5"),
        (dict(num_feature_draws=0), InvalidInputError, "num_feature_draws=0"),
        (dict(nugget=-1e-3), InvalidInputError, "nugget=-0.001"),
        (dict(kl_weight=-1.0), InvalidInputError, "kl_weight=-1.0"),
        (dict(init_std=(0.0, 0.1)), InvalidInputError, "init_std=0.0"),
        (dict(stochastic="last"), InvalidInputError, "stochastic='last' must be one of 'all', 'last_layer'"),
        (dict(covariance="diag"), InvalidInputError, "covariance='diag'.*'diagonal'"),
        (dict(linearize="jpv"), InvalidInputError, "linearize='jpv'.*did you mean 'jvp'"),
        (dict(head="fc"), HeadError, "head='fc' is not a linear layer"),
        (dict(context=contexts.Uniform([-1, -1], [1, 1])), InvalidInputError, r"inputs of shape \(2,\)"),
    ],
)
def test_impossible_settings_are_refused(make, settings, error, said):
    net, x = make("mlp")
    with pytest.raises(error, match=said):
        fsvi_on(net, x, **settings)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (None, "no context: pass context="),
        (contexts.Mixture([contexts.Batch(), contexts.Uniform(0.0, 1.0)], [0.5, 0.5]), None),
        (Listed(torch.zeros(4, 5)), r"shape \(5,\).*inputs have shape \(3,\)"),
        (contexts.Monochrome(), "Monochrome needs images"),
    ],
    ids=["none", "fitting", "shape", "no_images"],
)
def test_a_context_that_does_not_fit_is_found_before_the_first_step(make, context, said):
    net, x = make("mlp")
    method = fsvi_on(net, x, context=context)
    if said is None:
        return method.begin(x, 4)
    with pytest.raises(InvalidInputError, match=said):
        method.begin(x, 4)


def test_a_head_that_cannot_carry_the_uncertainty_is_refused(make):
    tied, x = make("tied_head")
    for settings in (dict(), dict(linearize="conditional"), dict(linearize="exact", stochastic="last_layer")):
        with pytest.raises(HeadError, match=r"'fc' shares a parameter.*untie"):
            fsvi_on(tied, x, **settings)
    net, x = make("mlp")
    net[2].bias.requires_grad_(False)
    with pytest.raises(HeadError, match="'2' is frozen"):
        fsvi_on(net, x)


# From a trained network -----------------------------------------------------------------------------------------------


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
        means = method.posterior.means()
        assert all(torch.equal(means[name], p) for name, p in source.net.named_parameters())


def test_from_trained_takes_the_methods_likelihood():
    source, x, _ = trained_map()
    assert isinstance(fsvi.FSVI.from_trained(source, context=contexts.Dataset(x)).likelihood, fsvi.Categorical)
    with pytest.raises(InvalidInputError, match="needs a likelihood"):
        fsvi.FSVI.from_trained(source.net, context=contexts.Dataset(x))


@pytest.mark.parametrize("freeze", [True, ["0"], ["0.weight", "0.bias"]])
def test_from_trained_leaves_frozen_layers_alone(freeze):
    source, x, y = trained_map()
    method = fsvi.FSVI.from_trained(source, context=contexts.Dataset(5 * x), freeze=freeze)
    fsvi.fit(method, (x, y), epochs=2, progress=False)
    means = method.posterior.means()
    assert torch.equal(means["0.weight"], source.net[0].weight) and torch.equal(means["0.bias"], source.net[0].bias)
    assert not torch.equal(means["2.weight"], source.net[2].weight)
    assert all(p.requires_grad for p in source.net.parameters())


def test_from_trained_makes_the_context_uncertain_and_keeps_the_data():
    source, x, y = trained_map()
    away = torch.randn(40, 3) + torch.tensor([0.0, 8.0, 8.0])
    method = fsvi.FSVI.from_trained(source, context=contexts.Dataset(away))
    before = source.predict(away).entropy().mean()
    fsvi.fit(method, (x, y), epochs=100, progress=False)
    assert method.predict(away).entropy().mean() > before + 0.2
    assert (method.predict(x).mean.argmax(1) == y).float().mean() >= 0.9


def test_from_trained_names_a_layer_that_is_not_there():
    source, x, _ = trained_map()
    with pytest.raises(InvalidInputError, match="freeze='conv' is no layer"):
        fsvi.FSVI.from_trained(source, context=contexts.Dataset(x), freeze=["conv"])


def test_a_posterior_as_prior_is_where_the_next_task_starts():
    source, x, y = trained_map()
    first = fsvi.FSVI.from_trained(source, context=contexts.Dataset(x), stochastic="all")
    fsvi.fit(first, (x, y), epochs=3, progress=False)
    second = fsvi.FSVI(first.net, fsvi.Categorical(), contexts.Dataset(x), prior=first.as_prior(), linearize="exact")
    second.posterior.mean.data.copy_(first.posterior.mean.data)
    second.posterior.log_std.data.copy_(first.posterior.log_std.data)
    assert abs(float(second.function_kl(x[:6]))) < 1e-6
