import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fsvi
from fsvi import contexts
from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions.priors import Induced
from fsvi_cases import LABELS, MODES, NUGGET, Listed, explicit, fix_noise, fsvi_on, loss_of

# The loss -------------------------------------------------------------------------------------------------------------


def test_the_likelihood_term_uses_draws_of_the_real_network(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, num_samples=3)
    noises = torch.randn(3, *method.posterior.log_std.shape, dtype=torch.float64)
    fix_noise(method, *noises)
    draws = [method.posterior.at(noises[index % 3]).params for index in range(1, 4)]
    outputs = torch.stack([functional_call(method.net, draw, (x,)) for draw in draws])
    expected = -torch.distributions.Categorical(logits=outputs).log_prob(LABELS).mean()
    torch.testing.assert_close(method(x, LABELS)["nll"], expected)


@pytest.mark.parametrize("name", ["mlp", "no_bias"])
def test_with_a_stochastic_last_layer_each_example_is_drawn_from_its_own_marginal(make, monkeypatch, name):
    """Mean f(x; μ) and variance diag(J S Jᵀ), by the explicit Jacobian."""
    net, x = make(name)
    method = fsvi_on(net, x, stochastic="last_layer", num_samples=3)
    q = explicit(method.net, dict(method.net.named_parameters()), method.posterior.stds(), x)
    shape = (len(x), method.network.num_outputs)
    mean, std = q.mean.reshape(shape), (q.variance - NUGGET).sqrt().reshape(shape)
    noise = torch.randn(3, *shape, dtype=torch.float64)
    monkeypatch.setattr(
        torch, "randn", lambda size, **_: noise if len(size) == 3 else torch.zeros(size, dtype=torch.float64)
    )
    expected = -torch.distributions.Categorical(logits=mean + std * noise).log_prob(LABELS).mean()
    torch.testing.assert_close(method(x, LABELS)["nll"], expected)


def test_features_of_zero_leave_the_gradient_finite():
    """Without a bias such an example has no variance, where the square root has no derivative."""
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    nn.init.constant_(net[0].bias, -9.0)
    method = fsvi.FSVI(net, fsvi.Categorical(), contexts.Batch(), num_context=2, stochastic="last_layer")
    loss_of(method, torch.rand(5, 2), torch.tensor([0, 1, 2, 0, 1])).backward()
    assert method.posterior.log_std.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in method.net.parameters())


def test_the_weight_is_one_over_n_unless_given(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, stochastic="last_layer")
    kl = method.function_kl(x)
    torch.testing.assert_close(method(x, LABELS)["kl"], kl / 4)
    method.num_data = 1000
    torch.testing.assert_close(method(x, LABELS)["kl"], kl / 1000)
    method.kl_weight = 0.3
    torch.testing.assert_close(method(x, LABELS)["kl"], 0.3 * kl)


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["mlp", "batch_norm", "transformer", "lstm"])
def test_the_gradient_of_the_loss(make, name, linearize, covariance):
    """In a random direction of all learned parameters, against central differences."""
    net, x = make(name)
    method = fsvi_on(net, x, linearize=linearize, covariance=covariance, num_context=3, context=Listed(x[:3] + 0.1))
    fix_noise(method)
    parameters = [p for group in method.parameter_groups(1.0) for p in group["params"]]
    directions = [torch.randn_like(p) for p in parameters]
    method.eval()
    loss_of(method, x, LABELS).backward()
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True))
    ends = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(step * d)
            ends.append(loss_of(method, x, LABELS))
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


# Prediction -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
@pytest.mark.parametrize("name", ["mlp", "no_bias", "dropout", "batch_norm", "transformer", "lstm"])
def test_draws_go_through_the_real_network_in_eval_mode(make, name, stochastic):
    net, x = make(name)
    method = fsvi_on(net, x, stochastic=stochastic).train()
    generator = torch.Generator().manual_seed(3)
    q = method.posterior
    draws = [q.at(noise).params for noise in q.noise(generator, 5)]
    frozen = copy.deepcopy(method.net).eval()
    expected = torch.stack([functional_call(frozen, draw, (x,)) for draw in draws]).softmax(-1)
    p = method.predict(x, num_samples=5, seed=3)
    torch.testing.assert_close(p.samples, expected)
    assert method.net.training and not p.samples.requires_grad
    assert all(torch.equal(b, method.net.get_buffer(n)) for n, b in frozen.named_buffers())


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
        ("residual", "jvp", "all"),
        ("residual", "conditional", "last_layer"),
    ],
)
def test_a_step_leaves_running_statistics_as_the_likelihood_pass_alone(make, name, linearize, stochastic):
    net, x = make(name)
    net, x = net.float(), x.float()
    settings = dict(prior=Induced(), num_context=2, num_context_sets=2, context=Listed(x[:2] + 5, x[:2] - 5))
    method = fsvi_on(net, x, linearize=linearize, stochastic=stochastic, **settings).train()
    fix_noise(method)
    alone = copy.deepcopy(method.net)
    functional_call(alone, method.posterior.draw().params, (method.network.arranged(x),))
    before = {name: b.clone() for name, b in method.net.named_buffers()}
    loss_of(method, x, LABELS).backward()
    for name, buffer in method.net.named_buffers():
        assert torch.equal(buffer, alone.get_buffer(name)) and not torch.equal(buffer, before[name])


# What a user brings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_frozen_parameters_stay_as_they_are(make, linearize, stochastic):
    net, x = make("mlp")
    net[0].weight.requires_grad_(False)
    method = fsvi_on(net, x, linearize=linearize, stochastic=stochastic)
    fsvi.fit(method, (x, LABELS), epochs=3, lr=0.1)
    assert "0.weight" not in method.posterior.stds()
    assert torch.equal(dict(method.net.named_parameters())["0.weight"], net[0].weight)
    assert torch.equal(method.net[0].weight, net[0].weight)
    assert not torch.equal(dict(method.net.named_parameters())["0.bias"], net[0].bias)


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_dropout_acts_on_the_likelihood_and_not_on_the_kl(make, linearize, stochastic):
    net, x = make("dropout")
    method = fsvi_on(net, x, linearize=linearize, stochastic=stochastic).train()
    fix_noise(method)
    kls = [method.function_kl(x), method.function_kl(x), method.eval().function_kl(x)]
    assert kls[0] == kls[1] == kls[2]
    method.train()
    terms = [method(x, LABELS) for _ in range(2)]
    assert terms[0]["nll"] != terms[1]["nll"] and torch.isclose(terms[0]["kl"], terms[1]["kl"])


@pytest.mark.parametrize("linearize", ["jvp", "conditional"])
@pytest.mark.parametrize(
    "name", ["tied_features", "transformer_dropout", "gru", "layer_norm", "depthwise", "head_first"]
)
def test_a_few_steps_move_every_parameter(make, name, linearize):
    net, x = make(name)
    method = fsvi_on(net, x, linearize=linearize, stds=fsvi.posteriors.Stds(0.1))
    fsvi.fit(method, (x, LABELS), epochs=3, lr=0.01)
    means = dict(method.net.named_parameters())
    still = [n for n, p in net.named_parameters() if torch.equal(means[n], p) or not means[n].isfinite().all()]
    assert still == []


def test_a_wrong_guess_of_the_head_is_mended_when_data_comes(make):
    net, x = make("head_first")
    method = fsvi.FSVI(
        net, fsvi.Gaussian(0.1), contexts.Batch(), prior=Induced(), stochastic="last_layer", num_context=2
    )
    assert method.network.head == "body"
    loss_of(method, x, torch.randn(4, 2))
    assert method.network.head == "fc" and set(method.posterior.stds()) == {"fc.weight", "fc.bias"}
    assert method.likelihood.noise.shape == (2,) and method.prior.network.head == "fc"


def test_an_optimizer_made_before_the_first_batch_trains_the_standard_deviations(make):
    net, x = make("head_first")
    method = fsvi.FSVI(net, fsvi.Gaussian(0.1), contexts.Batch(), num_context=2)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    loss_of(method, x, torch.randn(4, 2)).backward()
    before = method.posterior.log_std.detach().clone()
    optimizer.step()
    assert method.network.head == "fc" and not torch.equal(method.posterior.log_std, before)


def test_a_head_that_cannot_carry_the_uncertainty_is_refused(make):
    tied, x = make("tied_head")
    for settings in (dict(), dict(linearize="conditional"), dict(linearize="exact", stochastic="last_layer")):
        with pytest.raises(HeadError, match=r"'fc'.*untie"):
            fsvi_on(tied, x, **settings)
    net, x = make("mlp")
    net[2].bias.requires_grad_(False)
    with pytest.raises(HeadError, match="'2' is frozen"):
        fsvi_on(net, x)


def test_a_head_that_the_features_call_too_is_refused_whenever_it_shows():
    """With no example of the inputs it shows when data comes, and shows again when more of it does."""

    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc = nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.fc(torch.tanh(self.fc(self.body(x))))

    net, x = Recursive().double(), torch.randn(4, 3, dtype=torch.float64)
    with pytest.raises(HeadError, match=r"'fc'.*exact"):
        fsvi_on(net, x)
    late = fsvi.FSVI(net, fsvi.Categorical(), contexts.Batch())
    for _ in range(2):
        with pytest.raises(HeadError, match=r"'fc'.*exact"):
            loss_of(late, x, LABELS)
    method = fsvi_on(net, x, linearize="exact")
    q = explicit(net, dict(method.net.named_parameters()), method.posterior.stds(), x)
    p = MultivariateNormal(torch.zeros_like(q.mean), (0.5 + NUGGET) * torch.eye(len(q.mean), dtype=torch.float64))
    torch.testing.assert_close(method.function_kl(x), kl_divergence(q, p))


# Layers that torch cannot differentiate twice -------------------------------------------------------------------------


class Around(nn.Module):
    """Dense layers around a function of the hidden units."""

    def __init__(self, function):
        super().__init__()
        self.first, self.fc, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x):
        return self.fc(torch.tanh(self.function(self.first(x))))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.EmbeddingBag(7, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.embed(x)))


def sampled(h):
    grid = h.tanh().view(-1, 1, 2, 2)
    image = torch.arange(16.0).view(1, 1, 4, 4).expand(len(h), -1, -1, -1)
    return F.grid_sample(image, grid, align_corners=False).flatten(1).repeat(1, 2)


UNDIFFERENTIABLE = {
    "embedding_bag": (Bag, torch.randint(7, (6, 3), generator=torch.Generator().manual_seed(0))),
    "cdist": (lambda: Around(lambda h: torch.cdist(h, torch.eye(4))), None),
    "grid_sample": (lambda: Around(sampled), None),
    "checkpoint": (lambda: Around(lambda h: checkpoint(torch.tanh, h, use_reentrant=False)), None),
    "reentrant": (lambda: Around(lambda h: checkpoint(torch.tanh, h, use_reentrant=True)), None),
}


@pytest.mark.parametrize("linearize", MODES)
@pytest.mark.parametrize("name", UNDIFFERENTIABLE)
def test_layers_without_a_second_derivative_are_refused_before_training(name, linearize):
    make_net, x = UNDIFFERENTIABLE[name]
    x = torch.randn(6, 3) if x is None else x
    method = fsvi.FSVI(make_net(), fsvi.Categorical(), fsvi.contexts.Dataset(x), linearize=linearize, num_context=4)
    data = x, torch.arange(6) % 2
    if linearize == "conditional" or (name, linearize) == ("grid_sample", "exact"):
        assert math.isfinite(fsvi.fit(method, data, epochs=1, progress=False).loss[0])
    else:
        with pytest.raises(InvalidInputError, match='linearize="conditional"'):
            fsvi.fit(method, data, epochs=1, progress=False)


# Which parameters are random ------------------------------------------------------------------------------------------


def test_random_parameters_by_name():
    """The rest is trained as points, and frozen parameters stay; the last layer is always random."""
    net = fsvi.networks.mlp(2, (4, 4, 4), 2)
    net[0].requires_grad_(False)
    before = {name: p.clone() for name, p in net.named_parameters()}
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), stochastic=["4.*"])
    assert method.posterior.layout.names == ["4.weight", "4.bias", "6.weight", "6.bias"]
    x, y = torch.randn(16, 2), torch.arange(16) % 2
    fsvi.fit(method, (x, y), epochs=3, progress=False)
    moved = {name for name, p in method.net.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if not name.startswith("0.")}
    assert method.config()["settings"]["stochastic"] == ["4.*"]


def test_all_named_is_all_and_the_head_alone_is_the_last_layer(tmp_path):
    x, y = torch.randn(16, 2), torch.arange(16) % 2
    for chosen, named in (("all", ["*"]), ("last_layer", ["2"])):
        predictions = []
        for stochastic in (chosen, named):
            torch.manual_seed(0)
            net = fsvi.networks.mlp(2, (4,), 2)
            method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), stochastic=stochastic)
            fsvi.fit(method, (x, y), epochs=3, progress=False)
            method.save(tmp_path / "method.fsvi")
            predictions.append(fsvi.load(tmp_path / "method.fsvi").predict(x, 5).samples)
        assert torch.equal(*predictions)


@pytest.mark.parametrize("stochastic", ["some", [], 3, ["nowhere"], [1]])
def test_wrong_choices_of_random_parameters_are_refused(stochastic):
    with pytest.raises(InvalidInputError, match="stochastic"):
        fsvi.FSVI(fsvi.networks.mlp(2, (4,), 2), fsvi.Categorical(), stochastic=stochastic)
