"""The protocol: constructors that explain themselves, and what calling a method says."""

import inspect
import re
from dataclasses import is_dataclass

import pytest
import torch

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.methods.registry import METHODS

PUBLIC = [
    value
    for room in (fsvi, fsvi.contexts, fsvi.priors, fsvi.divergences)
    for name, value in vars(room).items()
    if inspect.isclass(value) and value.__module__.startswith(("fsvi.methods", "fsvi.functions"))
]
CONSTRUCTED = {
    cls
    for cls in PUBLIC
    if "__init__" in vars(cls) and not inspect.isabstract(cls) and not is_dataclass(cls)  # which list attributes
}


def arguments(cls):
    return list(inspect.signature(cls).parameters.values())


@pytest.mark.parametrize("cls", sorted(CONSTRUCTED, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_every_argument_of_a_constructor_is_documented(cls):
    _, _, listed = inspect.getdoc(cls).partition("Args:")
    missing = [p.name for p in arguments(cls) if not re.search(rf"^\s+{p.name}: \S", listed, re.MULTILINE)]
    assert not missing, f"{cls.__name__} does not document {missing}"


@pytest.mark.parametrize("name", METHODS)
def test_arguments_are_few_and_named(name):
    """At most twelve; only network, likelihood and context may be given by position."""
    parameters = arguments(METHODS[name].method)
    assert len(parameters) <= 12
    positional = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positional in (["net", "likelihood"], ["net", "likelihood", "context"])


def test_three_arguments_are_enough():
    x, y = scenarios.points()
    method = fsvi.FSVI(scenarios.dense(), fsvi.Categorical(), fsvi.contexts.Batch())
    fsvi.fit(method, (x, y), epochs=1, progress=False)
    assert method.predict(x).mean.shape == (20, 2)


def test_calling_a_method_says_what_to_call_instead():
    x, _ = scenarios.points()
    with pytest.raises(InvalidInputError, match="predict"):
        scenarios.classifier()(x)


def test_the_parts_of_a_method_hold_what_it_shares():
    method = scenarios.classifier()
    assert list(method.parts) == ["function_space", "weights"]
    method.context = fsvi.contexts.Batch()
    method.num_context = 3
    x, _ = scenarios.points()
    assert method.function_space.points(x).shape == (3, 2)
    assert method.posterior is method.weights.posterior and method.prior is method.function_space.prior


def test_means_are_left_in_the_network_after_training_and_after_loading(tmp_path):
    method = scenarios.classifier()
    fsvi.fit(method, scenarios.points(), epochs=2, progress=False)
    method.save(tmp_path / "method.fsvi")
    for each in (method, fsvi.load(tmp_path / "method.fsvi")):
        means = each.posterior.means()
        assert all(torch.equal(means[name], p) for name, p in each.net.named_parameters())
