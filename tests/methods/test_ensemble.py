"""Ensembles: nothing changes for a member, and the mixture is that of all members' draws."""

import copy
import math

import pytest
import torch
from torch import nn

import fsvi
import scenarios

X, Y = scenarios.points(32)
CURVE = scenarios.curve(32)
SETTINGS = {"epochs": 3, "batch_size": 10}


def plain(outputs: int = 2, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), activation(), nn.Linear(6, outputs))


def noise() -> fsvi.Gaussian:
    return fsvi.Gaussian(noise=0.5, learn_noise=True)


MEMBERS = {
    "map": (lambda: fsvi.MAP(plain(), fsvi.Categorical()), (X, Y)),
    "learned_noise": (lambda: fsvi.MAP(plain(1), noise()), CURVE),
    "mc_dropout": (lambda: fsvi.MCDropout(plain(), fsvi.Categorical()), (X, Y)),
    "swag": (lambda: fsvi.SWAG(scenarios.normalised(), fsvi.Categorical(), num_models=3), scenarios.images(20)),
    "fsvi": (lambda: fsvi.FSVI(plain(), fsvi.Categorical(), context=scenarios.box(), num_context=5), (X, Y)),
}


def ensemble(size: int = 3, make=MEMBERS["map"][0]) -> fsvi.Ensemble:
    return fsvi.Ensemble(make, size)


def tensors(method: fsvi.Method) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in method.state_dict().items()}


# Limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["swag", "fsvi"])
def test_an_ensemble_of_one_is_its_member_to_the_bit(name):
    make, data = MEMBERS[name]
    torch.manual_seed(0)
    alone = make()
    torch.manual_seed(0)
    one = fsvi.Ensemble(make, 1)
    histories = [fsvi.fit(method, data, **SETTINGS) for method in (alone, one)]
    assert histories[0].terms == histories[1].terms
    assert scenarios.same_bits(alone.state_dict(), one.members[0].state_dict())
    assert scenarios.same_bits(vars(alone.predict(data[0], 4)), vars(one.predict(data[0], 4)))


def silent_vogn() -> fsvi.VOGN:
    """With a rule of its own for the weights, Adam for BatchNorm, and no noise."""
    net = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    method = fsvi.VOGN(net, fsvi.Categorical())
    method.posterior.noise = lambda: torch.zeros(32)
    return method


@pytest.mark.parametrize("make", [MEMBERS["map"][0], silent_vogn])
def test_members_learn_what_they_would_alone(make):
    both = ensemble(2, make)
    alone = [copy.deepcopy(member) for member in both.members]
    fsvi.fit(both, (X, Y), **SETTINGS)
    for member, lone in zip(both.members, alone, strict=True):
        fsvi.fit(lone, (X, Y), **SETTINGS)
        for name, value in lone.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_progress_reaches_the_members():
    several = ensemble(2, lambda: fsvi.SWAG(plain(), fsvi.Categorical(), start=0.5))
    fsvi.fit(several, (X, Y), epochs=8)
    assert [int(member.gaussian.count) for member in several.members] == [5, 5]


# Prediction ----------------------------------------------------------------------------------------------------------


def test_class_probabilities_are_averaged():
    several = ensemble(3)
    expected = torch.stack([member.predict(X).mean for member in several.members]).mean(0)
    torch.testing.assert_close(several.predict(X).mean, expected)


def test_every_member_has_its_own_noise():
    several = ensemble(2, MEMBERS["learned_noise"][0])
    for member, std in zip(several.members, (0.2, 2.0), strict=True):
        member.likelihood.log_noise.data.fill_(math.log(std))
    x, y = CURVE
    logs = torch.stack([member.predict(x).log_prob(y) for member in several.members])
    torch.testing.assert_close(several.predict(x).log_prob(y), logs.logsumexp(0) - math.log(2))


@pytest.mark.parametrize(("asked", "given"), [(1, 3), (3, 3), (10, 12)])
def test_every_member_gives_its_share_of_draws(asked, given):
    several = ensemble(3, MEMBERS["mc_dropout"][0])
    draws = several.predict(X, asked).log_probs
    assert len(draws) == given
    first = several.members[0].predict(X, given // 3).log_probs
    assert torch.equal(draws[: given // 3], first)


def test_members_draw_apart():
    member = MEMBERS["mc_dropout"][0]()
    twins = fsvi.Ensemble.of([member, copy.deepcopy(member)])
    draws = twins.predict(X, 2).log_probs
    assert not torch.allclose(draws[0], draws[1])


def test_prediction_puts_every_member_into_eval_mode():
    net = lambda: nn.Sequential(plain(4), nn.Dropout(0.9), nn.Linear(4, 2))  # noqa: E731
    several = ensemble(2, lambda: fsvi.MAP(net(), fsvi.Categorical()))
    several.train()
    assert torch.equal(several.predict(X).log_probs, several.predict(X).log_probs)
    assert all(module.training for module in several.modules())


# Files ---------------------------------------------------------------------------------------------------------------


def test_members_trained_one_by_one_are_joined_from_files(tmp_path):
    members = [MEMBERS["mc_dropout"][0]() for _ in range(3)]
    for seed, member in enumerate(members):
        fsvi.fit(member, (X, Y), seed=seed, **SETTINGS)
        member.save(tmp_path / str(seed))
    joined = fsvi.Ensemble.of([fsvi.load(tmp_path / str(seed), plain()) for seed in range(3)])
    assert torch.equal(joined.predict(X, 6).log_probs, fsvi.Ensemble.of(members).predict(X, 6).log_probs)


@pytest.mark.parametrize("kind", ["calibrated", "ensemble"])
def test_members_that_are_calibrated_or_ensembles_predict_as_they_do_alone(kind, tmp_path):
    x, y = fsvi.data.two_moons(60, noise=0.2, seed=0)
    members = []
    for seed in (0, 1):
        member = fsvi.Ensemble(lambda: fsvi.MAP(fsvi.networks.mlp(2, (4,), 2), fsvi.Categorical()), 2)
        fsvi.fit(member, (x, y), epochs=5, lr=0.1, seed=seed)
        steps = [fsvi.calibration.TemperatureScaling()]
        members.append(member if kind == "ensemble" else fsvi.calibration.Calibrated.fit(member, steps, x, y))
    method = fsvi.Ensemble.of(members)
    expected = sum(member.predict(x).mean for member in members) / 2
    method.save(tmp_path / "method.fsvi")
    for each in (method, fsvi.load(tmp_path / "method.fsvi")):
        torch.testing.assert_close(each.predict(x).mean, expected)


def test_an_ensemble_of_trained_members_knows_the_shape_of_an_input(tmp_path):
    members = [MEMBERS["map"][0]() for _ in range(2)]
    assert fsvi.Ensemble.of(members).input_shape is None
    for member in members:
        member.check_inputs(X[:2])
    joined = fsvi.Ensemble.of(members)
    joined.save(tmp_path / "joined")
    assert joined.input_shape == fsvi.load(tmp_path / "joined").input_shape == (2,)


def test_loading_with_another_network_says_so(tmp_path):
    ensemble(2).save(tmp_path / "two")
    with pytest.raises(fsvi.errors.FileFormatError, match="another architecture"):
        fsvi.load(tmp_path / "two", plain(3))


# Bad input -----------------------------------------------------------------------------------------------------------

SHARED = plain()


def different(*kinds):
    return fsvi.Ensemble.of([kind(plain(outputs), fsvi.Categorical()) for kind, outputs in kinds])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: different((fsvi.MAP, 2), (fsvi.SWAG, 2)), "a MAP and a SWAG"),
        (lambda: different((fsvi.MAP, 2), (fsvi.MAP, 3)), "members 0 and 1"),
        (lambda: fsvi.fit(ensemble(2, lambda: fsvi.MAP(SHARED, fsvi.Categorical())), (X, Y)), "same parameters"),
        (lambda: ensemble(2, plain), "Sequential"),
        (lambda: ensemble(2, MEMBERS["map"][0]()), "MAP"),
    ],
)
def test_members_that_are_no_ensemble(make, said):
    with pytest.raises(fsvi.errors.InvalidInputError, match=said):
        make()
