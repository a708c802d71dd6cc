"""Names, defaults for the task, and networks for an ensemble's members."""

import inspect

import pytest
import torch
from torch import nn

import fsvi
import scenarios
from conftest import Transformer
from fsvi.methods import registry
from fsvi.methods.registry import METHODS, make_method, method_names


def dense(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs))


def make(name: str, net=None, **settings) -> fsvi.Method:
    return make_method(name, dense() if net is None else net, fsvi.Categorical(), **settings)


def weights(ensemble: fsvi.Ensemble, name: str) -> list[torch.Tensor]:
    return [dict(member.net.named_parameters())[name] for member in ensemble.members]


# Names ---------------------------------------------------------------------------------------------------------------


def test_every_method_has_a_name_and_is_public():
    concrete = {
        cls.__name__
        for cls in fsvi.serialization.Configurable._registry.values()
        if issubclass(cls, fsvi.Method) and cls.__module__.startswith("fsvi.") and not inspect.isabstract(cls)
    }
    exported = {name for name in fsvi.__all__ if inspect.isclass(getattr(fsvi, name))}
    named = {type(make(name)).__name__ for name in METHODS} - {"FixedMeanFSVI"} | {"Ensemble"}
    assert named <= exported
    assert {name for name in concrete if name in exported} == named


@pytest.mark.parametrize(
    ("typed", "meant"), [("mfvi-temperd", "mfvi-tempered"), ("FSVI", "fsvi"), ("ensemble:swga", "swag")]
)
def test_the_nearest_name_is_suggested(typed, meant):
    with pytest.raises(fsvi.errors.InvalidInputError, match=f"did you mean '{meant}'"):
        make(typed)


@pytest.mark.parametrize("typed", ["xyz", "ensemble:ensemble:map", ""])
def test_an_unknown_name_is_refused(typed):
    assert typed not in method_names()
    with pytest.raises(fsvi.errors.InvalidInputError, match="must be one of"):
        make(typed)


# Settings ------------------------------------------------------------------------------------------------------------


def test_tempered_is_a_setting():
    assert make("mfvi-tempered").kl_weight.temperature == 0.1 and make("mfvi").kl_weight is None
    assert make("mfvi-tempered", kl_weight=0.5).kl_weight == 0.5


def test_a_name_makes_an_ensemble_of_five_members_unless_told():
    for name in ("vogn", "fsvi"):
        assert [type(member) for member in make(f"ensemble:{name}", size=2).members] == [METHODS[name]] * 2
    assert len(make("ensemble:map").members) == 5


def test_settings_reach_the_method_and_the_members():
    assert make("mc-dropout", rate=0.7).rate == 0.7
    assert [member.rate for member in make("ensemble:mc-dropout", rate=0.7, size=2).members] == [0.7, 0.7]


def test_defaults_depend_on_the_task():
    regression = make_method("mc-dropout", dense(1), fsvi.Gaussian())
    assert regression.rate < make("mc-dropout").rate
    assert make_method("mc-dropout", dense(1), fsvi.Gaussian(), rate=0.4).rate == 0.4


@pytest.mark.parametrize("name", ["mc-dropout", "ensemble:mc-dropout"])
def test_an_unknown_setting_is_refused_with_the_nearest(name):
    with pytest.raises(fsvi.errors.InvalidInputError, match="did you mean 'rate'"):
        make(name, rat=0.5)


def test_a_context_is_passed_on_and_suits_the_inputs_unless_it_is_given():
    context = fsvi.contexts.Dataset(scenarios.points()[0])
    for name in ("fsvi", "fbnn", "spg", "fs-eb", "gfsvi"):
        assert make(name, context=context).context.data is context.data
    assert isinstance(make("map", context=scenarios.box()), fsvi.MAP)
    assert isinstance(make("fsvi").context, fsvi.contexts.Suitable)


# Networks of an ensemble ---------------------------------------------------------------------------------------------


def test_members_start_apart_and_the_first_as_given():
    net = dense()
    first, second, third = weights(make("ensemble:map", net, size=3), "0.weight")
    assert torch.equal(first, net[0].weight)
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_attention_is_drawn_anew():
    first, second = weights(make("ensemble:map", Transformer(), size=2), "encoder.layers.0.self_attn.in_proj_weight")
    assert not torch.equal(first, second)


def test_frozen_layers_are_kept():
    net = scenarios.normalised()
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    net[1].running_mean.fill_(7.0)
    several = make("ensemble:map", net, size=2)
    assert torch.equal(*weights(several, "0.weight"))
    assert not torch.equal(*weights(several, "4.weight"))
    assert bool((several.members[1].net[1].running_mean == 7.0).all())


def test_a_function_makes_every_network():
    made: list[nn.Module] = []

    def build() -> nn.Module:
        made.append(dense())
        return made[-1]

    several = make("ensemble:map", build, size=3)
    assert all(torch.equal(w, net[0].weight) for w, net in zip(weights(several, "0.weight"), made, strict=True))
    assert type(make("map", build)) is registry.MAP and len(made) == 4


def test_a_function_that_makes_no_network_is_refused():
    with pytest.raises(fsvi.errors.InvalidInputError, match="net is a NoneType"):
        fsvi.make_method("map", lambda: None, fsvi.Categorical())
