import math

import pytest
import torch
from torch import distributions as D
from torch import nn
from torch.func import functional_call

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.methods.rank1 import RankOne
from fsvi_cases import loss_of

LABELS = torch.tensor([0, 1, 1, 0])


def noiseless(net, **settings):
    """Unit factors and no noise."""
    method = fsvi.Rank1(net, fsvi.Categorical(), **settings)
    with torch.no_grad():
        method.factors.log_std.fill_(-100)
    return method


@pytest.mark.parametrize("name", ["mlp", "depthwise", "batch_norm", "residual", "transformer"])
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


# The factors --------------------------------------------------------------------------------------------------------

NUM = 4000

LAYERS = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "no_bias": (lambda: nn.Linear(3, 2, bias=False), (3,)),
    "positions": (lambda: nn.Linear(3, 2), (4, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 3, 3)),
    "grouped": (lambda: nn.Conv2d(4, 6, 2, groups=2), (4, 3, 3)),
    "depthwise": (lambda: nn.Conv2d(3, 6, 2, groups=3), (3, 3, 3)),
    "one_input": (lambda: nn.Linear(1, 3), (1,)),
}


def rank_one(net, random_signs=False):
    return RankOne(net, 3, 0.1, random_signs)


def moved(q):
    """The same distribution at arbitrary parameters."""
    with torch.no_grad():
        q.mean.normal_(1, 0.3)
        q.log_std.normal_(-2, 0.3)
    return q


def outer(layer, r, s):
    """W ∘ s rᵀ, entry by entry."""
    weight = layer.weight.clone()
    outputs, inputs = weight.shape[:2]
    in_group = outputs // getattr(layer, "groups", 1)
    for k in range(outputs):
        for j in range(inputs):
            weight[k, j] *= s[k] * r[k // in_group * inputs + j]
    return weight


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_layer_computes_with_the_weight_times_the_outer_product(name):
    make, shape = LAYERS[name]
    layer = make().double()
    q = rank_one(layer)
    x = torch.randn(3, *shape, dtype=torch.float64)
    factors = torch.randn(3, q.mean.shape[1], dtype=torch.float64)
    with q.scaling(layer, factors):
        outputs = layer(x)
    for example, row, output in zip(x.split(1), factors, outputs.split(1), strict=True):
        weight = outer(layer, *q.layout.views(row).values())
        torch.testing.assert_close(functional_call(layer, {"weight": weight}, (example,)), output)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_the_outer_product(name):
    make, shape = LAYERS[name]
    layer = make().double()
    q = rank_one(layer)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    factors = torch.randn(3, q.mean.shape[1], dtype=torch.float64, requires_grad=True)
    wanted = [x, factors, *layer.parameters()]
    with q.scaling(layer, factors):
        outputs = layer(x)
    weights = torch.randn_like(outputs)
    views = [q.layout.views(row).values() for row in factors]
    expected = torch.cat(
        [functional_call(layer, {"weight": outer(layer, *view)}, (x[i : i + 1],)) for i, view in enumerate(views)]
    )
    mine, theirs = (torch.autograd.grad((each * weights).sum(), wanted) for each in (outputs, expected))
    torch.testing.assert_close(mine, theirs)


def test_draws_have_the_moments_of_their_components():
    q = moved(rank_one(nn.Linear(2, 2)))
    components = torch.arange(3 * NUM) % 3
    draws = q.draw(components)
    for k in range(3):
        own = draws[components == k]
        mean_error = (own.mean(0) - q.mean[k]) / q.log_std[k].exp() * math.sqrt(NUM)
        std_error = (own.std(0) / q.log_std[k].exp() - 1) * math.sqrt(2 * NUM)
        assert mean_error.abs().max() < 5 and std_error.abs().max() < 5
    noise = (draws - q.mean[components]) / q.log_std.exp()[components]
    assert (noise.T.corrcoef() - torch.eye(4)).abs().max() < 5 / math.sqrt(3 * NUM)


@pytest.mark.parametrize("random_signs", [False, True])
@torch.no_grad()
def test_the_kl_is_the_mean_over_components_of_that_of_torch_distributions(random_signs):
    q = moved(rank_one(nn.Linear(3, 2).double(), random_signs=random_signs))
    prior_mean = q.centre if random_signs else torch.ones(5, dtype=torch.float64)
    reference = D.kl_divergence(D.Normal(q.mean, q.log_std.exp()), D.Normal(prior_mean, 0.1)).sum(1).mean()
    torch.testing.assert_close(q.kl(0.1), reference)


@torch.no_grad()
def test_the_kl_bounds_that_of_the_mixture():
    """Monte-Carlo estimates of the mixture's own KL, to the prior of one sign and, up to log 2 a factor, of both."""
    for random_signs in (False, True):
        q = rank_one(nn.Linear(2, 1).double(), random_signs=random_signs)
        q.mean.add_(0.1 * torch.randn_like(q.mean))
        each = D.Independent(D.Normal(q.mean, q.log_std.exp()), 1)
        draws = q.draw(torch.arange(NUM) % 3)
        log_q = D.MixtureSameFamily(D.Categorical(torch.ones(3)), each).log_prob(draws)
        log_p = D.Normal(1.0, 0.1).log_prob(draws)
        if random_signs:
            log_p = torch.logaddexp(log_p, D.Normal(-1.0, 0.1).log_prob(draws)) - math.log(2)
        ratios = log_q - log_p.sum(1)
        bound = q.kl(0.1) + (3 * math.log(2) if random_signs else 0)
        assert 0 < ratios.mean() < bound + 5 * ratios.std() / math.sqrt(NUM)


def test_frozen_layers_have_no_factors_and_tied_ones_share_theirs(make):
    net, _ = make("mlp")
    net[0].weight.requires_grad_(False)
    assert rank_one(net).mean.shape == (3, 5 + 2)
    tied, x = make("tied_head")
    q = rank_one(tied)
    assert q.mean.shape == (3, 3 + 3)
    with q.scaling(tied, torch.zeros(1, 6, dtype=torch.float64)):
        torch.testing.assert_close(tied(x), tied.fc.bias.expand(4, 3))


@torch.no_grad()
def test_attention_gets_factors_around_it_and_predicts_as_it_trains(make):
    """In eval mode attention layers have a fused path that must not leave the factors out."""
    net, x = make("transformer")
    q = rank_one(net)
    factors = torch.randn(4, q.mean.shape[1], dtype=torch.float64)
    outputs = []
    for mode in (True, False):
        with q.scaling(net.train(mode), factors):
            outputs.append(net(x))
    torch.testing.assert_close(*outputs)


class Folded(nn.Module):
    """Positions folded into the batch."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x.reshape(-1, 3)).reshape(len(x), -1, 2).mean(1)


def test_a_layer_that_does_not_see_one_row_for_each_example_is_an_error():
    net = Folded()
    q = rank_one(net)
    with q.scaling(net, q.draw(torch.arange(4) % 3)), pytest.raises(InvalidInputError, match=r"\(20, 3\).*4 examples"):
        net(torch.randn(4, 5, 3))
