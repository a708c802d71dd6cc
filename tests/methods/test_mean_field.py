"""What MFVI and RadialMFVI share: the loss, its closed-form optimum, BatchNorm, frozen parameters, settings."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import fsvi
from fsvi.errors import InvalidInputError

METHODS = [fsvi.MFVI, fsvi.RadialMFVI]
every_method = pytest.mark.parametrize("method_class", METHODS)
LABELS = torch.tensor([0, 1, 1, 0])


def linear_problem(noise=0.5, num=30):
    """Correlated inputs (n, 3), their targets (n, 1), and AᵀA and Aᵀy with a column of ones for the bias."""
    mixing = torch.tensor([[1.0, 0.8, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64)
    x = torch.randn(num, 3, dtype=torch.float64) @ mixing
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 + noise * torch.randn(num, 1).double()
    design = torch.cat([x, torch.ones_like(y)], dim=1)
    return x, y, design.T @ design / noise**2, (design.T @ y / noise**2).squeeze(1)


@pytest.mark.parametrize(("make", "temperature"), [(fsvi.MFVI, 1.0), (fsvi.MFVI, 0.3), (fsvi.RadialMFVI, 1.0)])
def test_linear_gaussian_regression_reaches_the_exact_mean_and_the_mean_field_variances(make, temperature):
    """For q of variances v, N·loss is ½ meanᵀΛ mean − meanᵀAᵀy/noise² + ½ Σᵢ (Λᵢᵢ vᵢ − temperature·log vᵢ) + constant,
    where Λ = AᵀA/noise² + temperature/prior_variance·I.

    Its minimum is mean = Λ⁻¹Aᵀy/noise², the exact posterior's at temperature 1, and vᵢ = temperature/Λᵢᵢ. Radial
    posteriors are uncorrelated too, and their log vᵢ and entropy move with log_stdᵢ in the same way.
    """
    x, y, gram, projection = linear_problem()
    precision = gram + temperature / 0.02 * torch.eye(4)
    mean, std = torch.linalg.solve(precision, projection), (temperature / precision.diagonal()).sqrt()
    settings = {
        "prior_variance": 0.02,
        "kl_weight": fsvi.Tempered(temperature),
        "num_samples": 16,
        "stds": fsvi.posteriors.Stds(0.1, 1.0),
    }
    method = make(nn.Linear(3, 1).double(), fsvi.Gaussian(0.5), **settings)
    fsvi.fit(method, (x, y), epochs=400, lr=0.03, schedule=fsvi.training.cosine(final=0.0))
    layout = method.posterior.layout
    learned = layout.flatten(method.posterior.stds())
    assert ((layout.flatten(dict(method.net.named_parameters())) - mean) / std).abs().max() < 0.12
    assert (learned / std).log().abs().max() < 0.12
    if temperature == 1.0:
        marginal = torch.linalg.inv(precision).diagonal().sqrt()
        assert (marginal / std).log().max() > 0.2, "inputs are correlated, so that marginal variances would be far off"


@every_method
@pytest.mark.parametrize("num_data", [None, 50])
def test_the_loss_is_the_expected_nll_and_the_scaled_kl_over_n(method_class, make, num_data):
    net, x = make("mlp")
    method = method_class(net, fsvi.Categorical(), kl_weight=fsvi.Tempered(0.3), num_samples=2)
    method.num_data = num_data
    torch.manual_seed(5)
    terms = method(x, LABELS)
    torch.manual_seed(5)
    q = method.posterior
    draws = [q.draw().params for _ in range(2)]
    each = [fsvi.Categorical().nll(torch.func.functional_call(net, params, (x,)), LABELS) for params in draws]
    torch.testing.assert_close(terms["nll"], torch.stack(each).mean())
    prior = Normal(torch.zeros((), dtype=torch.float64), 1.0)
    if method_class is fsvi.MFVI:
        pairs = zip(q.means().values(), q.stds().values(), strict=True)
        kl = sum(kl_divergence(Normal(mean, std), prior).sum() for mean, std in pairs)
    else:
        cross_entropies = [-sum(prior.log_prob(p).sum() for p in params.values()) for params in draws]
        kl = torch.stack(cross_entropies).mean() - q.entropy()
    torch.testing.assert_close(terms["kl"], 0.3 / (num_data or 4) * kl)
    assert list(terms) == ["nll", "kl"]


@every_method
def test_predictions_are_draws_of_the_parameters_through_the_network(method_class, make):
    net, x = make("mlp")
    method = method_class(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(0.5))
    draws = method.predict(x, num_samples=3, seed=4).samples
    generator = torch.Generator().manual_seed(4)
    q = method.posterior
    means, shifts = q.means(), q.layout.views(q.log_std.exp() * q.noise(generator, 3))
    each = [{name: mean + shifts[name][i] for name, mean in means.items()} for i in range(3)]
    expected = torch.stack([torch.func.functional_call(net, params, (x,)) for params in each])
    torch.testing.assert_close(draws, expected.softmax(-1))


@every_method
def test_batch_norm_and_frozen_parameters_are_points(method_class, make):
    net, x = make("batch_norm")
    net[3].requires_grad_(False)
    before = {name: p.clone() for name, p in net.named_parameters()}
    method = method_class(net, fsvi.Categorical())
    assert list(method.posterior.stds()) == ["0.weight", "0.bias", "6.weight", "6.bias"]
    fsvi.fit(method, (x, LABELS), epochs=2, lr=0.1)
    changed = {name for name, p in method.net.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"0.weight", "0.bias", "1.weight", "1.bias", "6.weight", "6.bias"}
    assert not torch.equal(method.net[1].running_mean, net[1].running_mean)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters()), "the user's network stays"


@every_method
def test_standard_deviations_start_where_they_are_told_with_a_learning_rate_of_their_own(method_class, make):
    net, _ = make("mlp")
    method = method_class(net, fsvi.Categorical(), stds=fsvi.posteriors.Stds(0.01, 0.25))
    rates = {id(p): group["lr"] for group in method.parameter_groups(0.1) for p in group["params"]}
    assert rates == {**{id(p): 0.1 for p in method.net.parameters()}, id(method.posterior.log_std): 0.025}
    for std in method.posterior.stds().values():
        torch.testing.assert_close(std, torch.full_like(std, 0.01))


@pytest.mark.parametrize("cls", [fsvi.MFVI, fsvi.RadialMFVI, fsvi.Rank1, fsvi.FSVI, fsvi.FBNN, fsvi.SPG])
def test_stds_that_are_not_an_object_are_refused(cls):
    """A number is the old way to give the initial standard deviation."""
    with pytest.raises(InvalidInputError, match=r"fsvi\.posteriors\.Stds"):
        cls(nn.Linear(2, 2), fsvi.Categorical(), stds=0.1)


class Scaled(nn.Module):
    """A network with a parameter that is a single number."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.scale * x)


@every_method
def test_a_parameter_can_be_a_single_number(method_class):
    method = method_class(Scaled(), fsvi.Categorical())
    fsvi.fit(method, (torch.randn(4, 3), LABELS), epochs=2)
    assert dict(method.net.named_parameters())["scale"].shape == () and method.net.scale != 2.0
