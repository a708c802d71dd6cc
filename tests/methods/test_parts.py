"""Parts of a method: their hooks, and settings of a method that live in a part."""

import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.methods.parts import Part, shared


class Temperature(Part):
    """A part that records its life and has a parameter with a learning rate of its own."""

    def __init__(self, value):
        super().__init__()
        self.value = value
        self.scale = nn.Parameter(torch.ones(()))
        self.calls = []

    def bind(self, network):
        super().bind(network)
        self.calls.append("bind")

    def begin(self, x):
        self.calls.append("begin")

    def settle(self):
        self.calls.append("settle")

    def learning_rates(self):
        yield self.scale, 7.0

    def replace(self, name, value):
        super().replace(name, 2 * value)


class Scaled(fsvi.MAP):
    """MAP with such a part."""

    value = shared("temperature", "value")

    def __init__(self, net, likelihood):
        nn.Module.__init__(self)
        super().__init__(net, likelihood)
        self.temperature = Temperature(3)
        self.build(self.network)


@pytest.fixture
def method():
    return Scaled(scenarios.dense(), fsvi.Categorical())


def test_hooks_are_called_in_the_order_of_a_methods_life(method):
    assert method.temperature.calls == ["bind"] and method.temperature.network is method.network
    fsvi.fit(method, scenarios.points(), epochs=2, progress=False)
    assert method.temperature.calls == ["bind", "begin", "settle"]


def test_a_shared_setting_is_read_from_the_part_and_replaced_by_it(method):
    assert method.value == 3
    method.value = 4
    assert method.value == method.temperature.value == 8 and "value" not in vars(method)


def test_parameters_may_learn_at_a_rate_of_their_own(method):
    common, own = method.parameter_groups(0.1)
    assert own == {"params": [method.temperature.scale], "lr": pytest.approx(0.7)}
    assert common["lr"] == 0.1 and all(p is not method.temperature.scale for p in common["params"])


def test_a_property_is_never_hidden_by_a_module_of_its_name():
    """`nn.Module` would register the network next to the property, which would go on returning the old one."""
    method = scenarios.classifier()
    with pytest.raises(AttributeError):
        method.posterior = nn.Linear(1, 1)
    assert "posterior" not in dict(method.named_children())
