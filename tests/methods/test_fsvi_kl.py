"""The divergence at context points that FSVI minimises."""

import math

import numpy
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.func import functional_call, jacrev

import fsvi
from fsvi.functions.linearize import features_jvp
from fsvi.functions.priors import Constant, Empirical, Induced
from fsvi_cases import LABELS, MODES, NUGGET, Listed, begun, explicit, fix_noise, fsvi_on

# The oracle: an explicit Jacobian and torch.distributions -------------------------------------------------------------


def explicit_prior(method, x):
    if isinstance(method.prior, Constant):
        size = len(x) * method.network.num_outputs
        covariance = (method.prior.variance + NUGGET) * torch.eye(size, dtype=torch.float64)
        return MultivariateNormal(torch.zeros(size, dtype=torch.float64), covariance)
    return explicit(method.prior.network.module, method.prior.q.means(), method.prior.q.stds(), x)


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
    q = explicit(method.net, dict(method.net.named_parameters()), method.posterior.stds(), x)
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
    q = explicit(method.net, dict(method.net.named_parameters()), method.posterior.stds(), x)
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
    shift = fix_noise(method)
    means, stds = dict(method.net.named_parameters()), method.posterior.stds()
    head = {name: std for name, std in stds.items() if name in method.network.head_names}
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
    noises = torch.randn(3, *method.posterior.log_std.shape, dtype=torch.float64)
    single = []
    for noise in noises:
        fix_noise(method, noise)
        single.append(method.function_kl(x))
    method.divergence.num_draws = 3
    fix_noise(method, *noises.roll(1, 0))
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
    torch.testing.assert_close(kls[-1], parameter_kl, rtol=1e-7, atol=1e-7)


def test_points_beyond_the_features_add_nothing(make):
    """The KL of a linear model has reached the parameters' at 4 points; the nugget's share vanishes with it."""
    net, x = make("linear", 9)
    method = fsvi_on(net, x, prior=Empirical(make("linear", seed=5)[0], 0.3), nugget=1e-9)
    torch.testing.assert_close(method.function_kl(x), method.function_kl(x[:4]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("linearize", MODES)
def test_the_prior_itself_has_no_kl(make, linearize):
    net, x = make("mlp", 9)
    method = fsvi_on(
        net,
        x,
        prior=Empirical(net, 0.49),
        stochastic="last_layer",
        stds=fsvi.posteriors.Stds((0.1, 0.7)),
        linearize=linearize,
    )
    assert method.function_kl(x) > 1
    nn.init.constant_(method.posterior.log_std, math.log(0.7))
    assert abs(method.function_kl(x)) < 1e-6


def test_in_last_layer_mode_the_kl_is_not_random(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, stochastic="last_layer")
    assert torch.equal(method.function_kl(x), method.function_kl(x))
    method = fsvi_on(net, x, stochastic="all")
    assert not torch.equal(method.function_kl(x), method.function_kl(x))


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
    means, stds = dict(method.net.named_parameters()), method.posterior.stds()
    pairs = [(explicit(method.net, means, stds, each), explicit_prior(method, each)) for each in sets]
    kls = torch.stack([kl_divergence(*(by_output(joint, 3, 2) for joint in pair)) for pair in pairs])
    assert kls.max(0).values.sum() > kls.sum(1).max() + 1, "the example does not tell the two apart"
    torch.testing.assert_close(method(x, LABELS)["kl"], kls.sum(1).max(), rtol=1e-8, atol=1e-8)


def test_a_random_prior_is_drawn_once_for_every_set(make, monkeypatch):
    """The largest KL is the one that is differentiated, not another draw of the prior at its set."""
    net, x = make("mlp", 4)
    method = fsvi_on(net, x, prior=Induced(feature_variance=0.5), num_context_sets=3, kl_weight=1.0)
    values, between = [], method.divergence.between
    monkeypatch.setattr(method.divergence, "between", lambda *args: values.append(between(*args)) or values[-1])
    method(x, LABELS)
    assert len(values) == 4
    torch.testing.assert_close(values[3], max(values[:3]))


@pytest.mark.parametrize("linearize", MODES)
def test_the_gradient_is_the_worst_sets(make, linearize):
    """One draw of the features serves all sets, and averages over R come before the max."""
    net, points = make("mlp", 12)
    x, sets = points[:4], points.split(3)
    settings = dict(num_context_sets=4, num_draws=2, kl_weight=1.0)
    method = fsvi_on(net, x, context=Listed(*sets), linearize=linearize, **settings)
    noises = torch.randn(2, *method.posterior.log_std.shape, dtype=torch.float64)
    kls = []
    for each in sets:
        fix_noise(method, *noises.roll(1, 0))
        kls.append(method.function_kl(each))
    fix_noise(method, *noises.roll(1, 0))
    worst = max(kls)
    kl = method(x, LABELS)["kl"]
    torch.testing.assert_close(kl, worst)
    parameters = list(method.parameters())
    for ours, theirs in zip(torch.autograd.grad(kl, parameters), torch.autograd.grad(worst, parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


# Networks that are no fixed function of one row -----------------------------------------------------------------------


class Acting(nn.Module):
    """A layer between dense ones."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.fc = nn.Linear(3, 4), layer, nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.layer(torch.tanh(self.first(x))))


class FromEightRows(nn.Module):
    def forward(self, h):
        return h - h.mean(0) if len(h) >= 8 else h


class ChangedInPlace(nn.Module):
    def forward(self, h):
        z = h * 2
        d = z.detach()
        z.add_(1)
        return z * d


@pytest.mark.parametrize("layer", [FromEightRows, ChangedInPlace])
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_minibatch_and_context_are_two_passes_whatever_the_layers_do(layer, stochastic):
    """Layers that act from eight rows on, and layers that change a tensor in place after detaching it."""
    net = Acting(layer()).double()
    x, context = torch.randn(2, 4, 3, dtype=torch.float64)
    linearize = "conditional" if layer is FromEightRows else "jvp"
    method = fsvi_on(net, x, context=Listed(context), linearize=linearize, stochastic=stochastic, kl_weight=1.0)
    fix_noise(method)
    begun(method.train(), x, LABELS)
    torch.testing.assert_close(method(x, LABELS)["kl"], method.eval().function_kl(context))
    if layer is ChangedInPlace and stochastic == "all":
        features = method.network.features
        shift = method.posterior.draw().shift
        moving = {name: dict(method.net.named_parameters())[name] for name in ("first.weight", "first.bias")}
        jacobian = jacrev(lambda means: features(x, means))(moving)
        dims = {name: tuple(range(-p.dim(), 0)) for name, p in moving.items()}
        expected = sum((jacobian[name] * shift[name]).sum(dims[name]) for name in moving)
        torch.testing.assert_close(features_jvp(method.network, shift, x)[1], expected)


@pytest.mark.parametrize("kind", ["rate", "steps", "numpy"])
def test_what_the_network_does_later_is_not_foreseen_from_its_first_rows(kind):
    """Dropout whose rate is raised, layers that depend on the step, randomness of NumPy: context rows stay apart."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps, self.dropout = 0, nn.Dropout(0.0)

        def forward(self, h):
            self.steps += 1
            if kind == "steps" and self.steps > 6:
                return h - h.mean(0)
            if kind == "numpy" and self.training:
                return h * torch.from_numpy(numpy.random.default_rng(self.steps).integers(2, size=h.shape))
            return self.dropout(h)

    net = Acting(Late()).double()
    x, context = torch.randn(2, 4, 3, dtype=torch.float64)
    method = fsvi_on(net, x, context=Listed(context), linearize="conditional", kl_weight=1.0)
    fix_noise(method)
    begun(method.train(), x, LABELS)
    method.net.layer.dropout.p, method.net.layer.steps = 0.5 if kind == "rate" else 0.0, 10
    torch.testing.assert_close(method(x, LABELS)["kl"], method.eval().function_kl(context))
