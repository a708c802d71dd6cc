import copy

import pytest
import torch
from torch import nn

import fsvi
from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.training.stacked import fit_together

CONTEXT = fsvi.contexts.Uniform([-3.0, -3.0], [3.0, 3.0])


def make(name, seed, context=CONTEXT, **settings):
    torch.manual_seed(seed)
    net = lambda: fsvi.networks.mlp(2, (6,), 1, nn.Tanh)  # noqa: E731
    return fsvi.make_method(name, net, fsvi.Gaussian(0.5, learn_noise=True), context=context, **settings)


def data(seed, n=24):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, x[:, seed % 2][:, None]


def test_without_noise_it_is_what_fit_does():
    """MAP on one batch has no random numbers, so that only rounding differs."""
    apart, together = ([make("map", seed) for seed in range(3)] for _ in range(2))
    settings = dict(epochs=30, batch_size=24, lr=0.05)
    alone = [fsvi.fit(method, data(i), progress=False, **settings) for i, method in enumerate(apart)]
    histories = fit_together(together, [data(i) for i in range(3)], **settings)
    for one, other in zip(apart, together, strict=True):
        for ours, theirs in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(histories, alone, strict=True):
        torch.testing.assert_close(torch.tensor(ours.loss), torch.tensor(theirs.loss), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["fsvi", "mfvi", "mfvi-radial", "mc-dropout", "rank1", "fbnn", "spg"])
def test_every_member_learns_its_own_data(name):
    methods = [make(name, seed) for seed in range(2)]
    pairs = [data(seed) for seed in (0, 1)]
    histories = fit_together(methods, pairs, epochs=60, batch_size=8, lr=0.05)
    for index, (method, history) in enumerate(zip(methods, histories, strict=True)):
        assert history.epochs == 60 and history.loss[-1] < history.loss[0]
        errors = [(method.predict(x, 20).mean - y).square().mean() for x, y in pairs]
        assert errors[index] < 0.3 * errors[1 - index]


@pytest.mark.parametrize("num", [5, 12])
@pytest.mark.parametrize(
    "settings",
    [
        {"linearize": "exact"},
        {"linearize": "conditional", "stds": fsvi.Stds((1e-9, 0.3))},
        {"stochastic": "last_layer"},
    ],
)
def test_every_member_has_its_own_kl(settings, num):
    """Where the KL is not random, and the context is always the same points, the first step's is known."""
    points = torch.randn(num, 2, generator=torch.Generator().manual_seed(9))
    settings = {**settings, "context": fsvi.contexts.Dataset(points), "num_context": len(points)}
    methods = [make("fsvi", seed, **settings) for seed in range(3)]
    expected = torch.stack([method.function_kl(points).detach() for method in methods])
    histories = fit_together(methods, [data(seed) for seed in range(3)], epochs=1, batch_size=24)
    weighted = torch.tensor([history.terms["kl"][0] for history in histories], dtype=torch.float64)
    torch.testing.assert_close(weighted, expected / 24, rtol=1e-5, atol=0)
    assert len(expected.unique()) == 3


def test_members_have_noise_of_their_own():
    methods = [make("fsvi", 0) for _ in range(2)]
    fit_together(methods, [data(0)] * 2, epochs=2, batch_size=8)
    assert not torch.equal(methods[0].posterior.mean, methods[1].posterior.mean)


@pytest.mark.parametrize("name", ["fsvi", "ensemble:fsvi"])
def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_state(name):
    torch.manual_seed(5)
    untouched = torch.rand(3)
    runs = []
    for _ in range(2):
        methods = [make(name, seed) for seed in range(2)]
        torch.manual_seed(5)
        fit_together(methods, [data(0), data(1)], epochs=3, batch_size=8, seed=1)
        assert torch.equal(torch.rand(3), untouched)
        runs.append([p for method in methods for p in method.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("name", ["map", "mfvi", "fsvi"])
def test_tied_layers_are_trained_together(name):
    methods = []
    for seed in range(2):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
        net[2].weight = net[0].weight
        methods.append(fsvi.make_method(name, net, fsvi.Gaussian(0.5, learn_noise=True), context=CONTEXT))
    fit_together(methods, [data(0), data(1)], epochs=2, batch_size=8)
    assert all(method.net[2].weight is method.net[0].weight for method in methods)


def test_frozen_layers_that_differ_stay_each_member_s_own():
    apart, together = [], []
    for methods in (apart, together):
        for seed in range(2):
            torch.manual_seed(seed)
            net = fsvi.networks.mlp(2, (6,), 1, nn.Tanh)
            net[0].requires_grad_(False)
            methods.append(fsvi.MAP(net, fsvi.Gaussian(0.5)))
    settings = dict(epochs=20, batch_size=24, lr=0.05)
    fit_together(together, [data(0), data(1)], **settings)
    for index, (one, other) in enumerate(zip(apart, together, strict=True)):
        fsvi.fit(one, data(index), progress=False, **settings)
        torch.testing.assert_close(other.net[-1].weight, one.net[-1].weight, rtol=1e-3, atol=1e-4)


def test_the_members_of_ensembles_are_trained_side_by_side():
    """MAP on one batch has no random numbers, so that the ensembles are what `fit` makes of them."""
    apart, together = ([make("ensemble:map", seed, size=3) for seed in range(2)] for _ in range(2))
    settings = dict(epochs=30, batch_size=24, lr=0.05)
    alone = [fsvi.fit(ensemble, data(i), progress=False, **settings) for i, ensemble in enumerate(apart)]
    histories = fit_together(together, [data(0), data(1)], **settings)
    for one, other in zip(apart, together, strict=True):
        for ours, theirs in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(histories, alone, strict=True):
        assert ours.terms.keys() == theirs.terms.keys()
        torch.testing.assert_close(torch.tensor(ours.loss), torch.tensor(theirs.loss), rtol=1e-3, atol=1e-4)


def test_every_member_has_its_own_prior():
    """A Gaussian process is fitted to each member's targets; the KL of the first step is with that one."""
    points = torch.randn(5, 2, generator=torch.Generator().manual_seed(9))
    settings = {"linearize": "exact", "context": fsvi.contexts.Dataset(points), "num_context": len(points)}
    priors = {"prior": fsvi.priors.GaussianProcess(learn=True)}
    methods = [make("fsvi", seed, **settings, **priors) for seed in range(2)]
    expected = []
    for index, method in enumerate(copy.deepcopy(methods)):
        x, y = data(index)
        method.begin(x, len(x))
        method.fit_prior(x, y)
        expected.append(method.function_kl(points).detach() / len(x))
    histories = fit_together(methods, [data(0), data(1)], epochs=1, batch_size=24)
    fitted = [method.prior.hyperparameters for method in methods]
    assert fitted[0].shape == (3,) and not torch.allclose(fitted[0], fitted[1])
    weighted = torch.tensor([history.terms["kl"][0] for history in histories], dtype=torch.float64)
    torch.testing.assert_close(weighted, torch.stack(expected), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("methods", "pairs", "said"),
    [
        (lambda: [make("map", 0)], lambda: [], "1 methods"),
        (lambda: [make("map", 0), make("map", 1, prior_variance=2.0)], lambda: [data(0)] * 2, "methods 0 and 1"),
        (lambda: [make("map", 0), make("map", 1)], lambda: [data(0), data(1, 9)], "shape"),
        (lambda: [make("vogn", 0)], lambda: [data(0)], "training"),
        (lambda: [make("ensemble:vogn", 0)], lambda: [data(0)], "VOGN"),
        (lambda: [make("fsvi", 0, num_context_sets=2)], lambda: [data(0)], "num_context_sets above 1"),
        (lambda: [make("ensemble:map", 0), make("map", 1)], lambda: [data(0)] * 2, "same size"),
        (lambda: [make("ensemble:map", 0, size=n) for n in (2, 3)], lambda: [data(0)] * 2, "same size"),
        (lambda: [make("swag", 0)], lambda: [data(0)], "training"),
    ],
)
def test_what_cannot_be_trained_together_is_refused(methods, pairs, said):
    with pytest.raises(InvalidInputError, match=said):
        fit_together(methods(), pairs(), epochs=1)


@pytest.mark.parametrize("name", ["mfvi", "ensemble:mfvi"])
def test_a_function_after_every_epoch_sees_the_parameters_of_the_moment(name):
    """It may draw random numbers without changing the training; its error ends the training."""
    quiet, watched = ([make(name, seed) for seed in range(2)] for _ in range(2))
    seen = []

    def look(epoch):
        weights = watched[0].state_dict()
        seen.append((epoch, torch.cat([value.flatten() for value in weights.values()]), torch.rand(3)))

    fit_together(quiet, [data(0), data(1)], epochs=3)
    fit_together(watched, [data(0), data(1)], epochs=3, after_epoch=look)
    for one, other in zip(quiet, watched, strict=True):
        assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert [epoch for epoch, *_ in seen] == [1, 2, 3] and not torch.equal(seen[0][1], seen[1][1])
    with pytest.raises(ZeroDivisionError):
        fit_together(watched, [data(0), data(1)], epochs=3, after_epoch=lambda epoch: 1 / 0)


def test_a_loss_that_is_no_number_stops_training():
    method = make("map", 0)
    with pytest.raises(NonFiniteLossError, match="nll"):
        fit_together([method], [data(0)], epochs=5, lr=1e30)
    assert not method.training
