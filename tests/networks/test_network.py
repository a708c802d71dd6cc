import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fsvi.errors import HeadError, InvalidInputError
from fsvi.networks import Network
from fsvi.networks.modes import evaluating
from fsvi.networks.parameters import batch_norms, deterministic_names

HEADS = {
    "mlp": "2",
    "no_bias": "2",
    "dropout": "3",
    "linear": "0",
    "head_first": "fc",
    "tied_features": "fc",
    "tied_head": "fc",
    "transformer": "head",
    "transformer_dropout": "head",
    "lstm": "head",
    "gru": "head",
    "depthwise": "6",
    "batch_norm": "6",
    "resnet18": "fc",
}


class Net(nn.Module):
    """Two dense layers, and whatever `finish` does to their output."""

    def __init__(self, finish):
        super().__init__()
        self.body, self.fc, self.finish = nn.Linear(3, 4), nn.Linear(4, 2), finish

    def forward(self, x):
        return self.finish(self.fc(torch.tanh(self.body(x))))


@pytest.mark.parametrize("name", HEADS)
def test_the_head_is_found_and_carries_the_output(make, name):
    """Φ(x) Wᵀ + b, computed from the split alone, is the network's output."""
    net, x = make(name)
    split = Network(net).examined(x)
    net.eval()
    features, outputs = split.with_features(x, dict(net.named_parameters()))
    assert split.head == HEADS[name]
    assert split.num_outputs == net(x).shape[1]
    assert torch.equal(outputs, net(x))
    torch.testing.assert_close(F.linear(features, split.linear.weight, split.linear.bias), net(x))
    assert Network(net, head=HEADS[name]).examined(x).settings() == split.settings()


@pytest.mark.parametrize(("name", "guess"), [("mlp", "2"), ("head_first", "body")])
def test_without_an_example_the_last_registered_layer_is_the_guess(make, name, guess):
    net, _ = make(name)
    assert Network(net).head == guess
    assert Network(net, head=HEADS[name]).head == HEADS[name]


def test_a_bare_linear_layer_is_its_own_head():
    net = nn.Linear(3, 2)
    split = Network(net).examined(torch.randn(4, 3))
    assert split.head == "" and split.head_names == ["weight", "bias"]


def test_head_names_are_keys_of_named_parameters(make):
    for name, expected in {"mlp": ["2.weight", "2.bias"], "no_bias": ["2.weight"]}.items():
        assert Network(make(name)[0]).head_names == expected


def test_a_layer_used_twice_is_the_head_by_its_last_call():
    """Recursion through one layer: only the input of the call that gives the output is the features."""
    net, x = Net(lambda f: f), torch.randn(5, 3)
    net.fc, net.body = nn.Linear(4, 4), nn.Linear(3, 4)
    net.finish = lambda f: net.fc(torch.relu(f))
    split = Network(net).examined(x)
    features, outputs = split.with_features(x, {})
    torch.testing.assert_close(net.fc(features), outputs)
    assert split.is_reused and split.is_tied


@pytest.mark.parametrize(("name", "tied"), [("tied_head", True), ("tied_features", False), ("mlp", False)])
def test_a_tied_head_is_noticed(make, name, tied):
    assert Network(make(name)[0], head=HEADS[name]).is_tied is tied


@pytest.mark.parametrize("name", ["batch_norm", "tied_features", "tied_head", "lstm"])
def test_replaced_parameters_and_buffers_are_used_and_the_network_is_left_alone(make, name):
    net, x = make(name)
    split = Network(net).examined(x)
    before = {key: t.clone() for key, t in net.state_dict().items()}
    named = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    tensors = {key: torch.rand_like(t) + 0.5 if t.is_floating_point() else t for key, t in named.items()}
    net.eval()
    _, outputs = split.with_features(x, tensors)
    assert all(torch.equal(before[key], t) for key, t in net.state_dict().items())
    with torch.no_grad():
        for key, t in named.items():
            t.copy_(tensors[key])
    torch.testing.assert_close(outputs, net(x))


@pytest.mark.parametrize("name", ["dropout", "batch_norm", "transformer_dropout"])
def test_looking_for_the_head_changes_nothing(make, name):
    """No hook is left; every layer's mode, the buffers and the random state are as before."""
    net, x = make(name)
    next(net.children()).eval()
    modes, state = [module.training for module in net.modules()], torch.get_rng_state()
    buffers = {n: b.clone() for n, b in net.named_buffers()}
    Network(net).examined(x)
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffers[n], b) for n, b in net.named_buffers())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_evaluating_brings_each_layers_mode_back_even_after_an_error(make):
    net, _ = make("dropout")
    net[2].eval()
    modes = [module.training for module in net.modules()]
    with pytest.raises(KeyError), evaluating(net):
        assert not any(module.training for module in net.modules())
        raise KeyError
    assert [module.training for module in net.modules()] == modes


def test_only_normalisation_layers_have_deterministic_parameters(make):
    net, _ = make("resnet18")
    norms = {name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert deterministic_names(net) == {f"{name}.{kind}" for name in norms for kind in ("weight", "bias")}
    assert len(batch_norms(net)) == 20 and batch_norms(make("layer_norm")[0]) == []
    assert deterministic_names(make("transformer")[0]) == set()


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (Net(lambda f: f.softmax(-1)), "softmax.*'fc'"),
        (Net(lambda f: f.log_softmax(-1)), "log-softmax.*'fc'"),
        (Net(lambda f: f.relu_()), "'fc'"),
        (Net(lambda f: 2 * f), "'fc'"),
        (Net(lambda f: (f, f)), "tuple"),
        (Net(lambda f: f[:, 0]), r"\(5,\)"),
        (Net(lambda f: f[None]), r"\(1, 5, 2\)"),
        (Net(lambda f: f[:3]), r"\(3, 2\)"),
        (nn.Sequential(nn.Conv1d(3, 2, 1)), r"nn\.Linear"),
        (nn.Sequential(nn.Flatten(), nn.Tanh()), r"nn\.Linear"),
    ],
    ids=["softmax", "log_softmax", "in_place", "scaled", "tuple", "vector", "three_dims", "short", "conv", "empty"],
)
def test_a_network_without_linear_output_is_refused(net, said):
    with pytest.raises(HeadError, match=said):
        Network(net).examined(torch.randn(5, 3))


def test_a_change_in_place_is_found_where_it_changes_nothing_yet():
    net = Net(lambda f: f.relu_())
    nn.init.constant_(net.fc.bias, 100.0)
    with pytest.raises(HeadError, match="linear layer"):
        Network(net).examined(torch.randn(5, 3))


def test_linear_layers_that_are_never_called_are_no_head():
    net = Net(lambda f: f)
    net.forward = lambda x: x
    with pytest.raises(HeadError, match="linear layers"):
        Network(net).examined(torch.randn(5, 3))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("classifier", "head='classifier'.*'body', 'fc'"),
        ("body", "head='body'.*'fc'"),
    ],
)
def test_a_wrong_head_name_is_corrected(head, said):
    with pytest.raises(HeadError, match=said):
        Network(Net(lambda f: f), head=head).examined(torch.randn(5, 3))


def test_inputs_of_another_shape_are_named():
    with pytest.raises(InvalidInputError, match=r"\(7,\)"):
        Network(Net(lambda f: f)).examined(torch.randn(5, 7))


@pytest.mark.parametrize(
    "finish",
    [lambda f: f.clamp(-5, 5), nn.Hardtanh(-50, 50), nn.Dropout(0.5), nn.ReLU6()],
    ids=["clamp", "hardtanh", "dropout", "relu6"],
)
def test_what_changes_only_some_outputs_is_found_too(finish):
    """On two examples, a bound that is wide enough or dropout in eval mode cannot be told from nothing."""
    net, x = Net(finish).eval(), torch.randn(2, 3)
    with torch.no_grad():
        net.fc.weight.mul_(0.1)
        net.fc.bias.fill_(2.0)
    assert torch.equal(net(x), net.fc(torch.tanh(net.body(x)))), "the example shows the change by itself"
    with pytest.raises(HeadError, match="'fc'"):
        Network(net).examined(x)


def test_looking_for_the_head_leaves_modes_and_random_numbers_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[1].eval()
    modes = [module.training for module in net.modules()]
    torch.manual_seed(0)
    Network(net).examined(torch.ones(2, 3))
    value = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), value)
    assert [module.training for module in net.modules()] == modes
