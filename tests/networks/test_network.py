import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fsvi
from fsvi.errors import HeadError, InvalidInputError
from fsvi.networks import Network
from fsvi.networks.heads import recording

HEADS = {
    "mlp": "2",
    "dropout": "3",
    "linear": "0",
    "head_first": "fc",
    "tied_features": "fc",
    "tied_head": "fc",
    "transformer": "head",
    "lstm": "head",
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


def test_a_layer_used_twice_is_the_head_by_its_last_call():
    """Recursion through one layer: only the input of the call that gives the output is the features."""
    net, x = Net(lambda f: f), torch.randn(5, 3)
    net.fc, net.body = nn.Linear(4, 4), nn.Linear(3, 4)
    net.finish = lambda f: net.fc(torch.relu(f))
    split = Network(net).examined(x)
    features, outputs = split.with_features(x, {})
    torch.testing.assert_close(net.fc(features), outputs)
    assert split.is_reused and split.is_tied


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


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["dropout", "batch_norm", "transformer_dropout"])
def test_looking_for_the_head_changes_nothing(make, name, training):
    """No hook is left; every layer's mode, the buffers and the random state are as before."""
    net, x = make(name)
    net.train(training)
    next(net.children()).eval()
    modes, state = [module.training for module in net.modules()], torch.get_rng_state()
    buffers = {n: b.clone() for n, b in net.named_buffers()}
    Network(net).examined(x)
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffers[n], b) for n, b in net.named_buffers())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (Net(lambda f: f.softmax(-1)), "softmax.*'fc'"),
        (Net(lambda f: f.relu_()), "'fc'"),
        (Net(lambda f: ("logits", f)), "tuple"),
        (Net(lambda f: f[:, 0]), r"\(5,\)"),
        (Net(lambda f: f[:3]), r"\(3, 2\)"),
        (nn.Sequential(nn.Conv1d(3, 2, 3)), r"nn\.Linear"),
    ],
    ids=["softmax", "in_place", "tuple", "vector", "short", "conv"],
)
def test_a_network_without_linear_output_is_refused(net, said):
    with pytest.raises(HeadError, match=said):
        Network(net).examined(torch.randn(5, 3))


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


# Heads that are not plain linear layers ------------------------------------------------------------------------------


class Cosine(nn.Linear):
    def forward(self, x):
        return 10 * F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


class Scaled(nn.Linear):
    def forward(self, x):
        return 1.5 * super().forward(x)


class Noisy(nn.Linear):
    """Noise in training only."""

    def forward(self, x):
        out = super().forward(x)
        return out + torch.randn_like(out) if self.training else out


class Adapted(nn.Linear):
    """A low-rank addition that starts at zero."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, x):
        return super().forward(x) + F.linear(F.linear(x, self.down), self.up)


def zero_cosine(inputs, outputs):
    head = Cosine(inputs, outputs)
    nn.init.zeros_(head.weight)
    return head


ODD_HEADS = {
    "cosine": Cosine,
    "cosine with zero weights": zero_cosine,
    "scaled": Scaled,
    "noisy": Noisy,
    "adapted": Adapted,
    "spectral norm": lambda i, o: nn.utils.parametrizations.spectral_norm(nn.Linear(i, o)),
    "weight norm": lambda i, o: nn.utils.parametrizations.weight_norm(nn.Linear(i, o)),
    "old spectral norm": lambda i, o: nn.utils.spectral_norm(nn.Linear(i, o)),
}


@pytest.mark.parametrize("name", ODD_HEADS)
def test_a_head_that_is_not_a_plain_linear_layer_is_refused(name):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), ODD_HEADS[name](5, 2))
    with pytest.raises(HeadError, match="plain"):
        Network(net).examined(torch.randn(4, 3))


# Outputs that are part of what the model returns ---------------------------------------------------------------------


class Result:
    def __init__(self, logits):
        self.logits = logits


OUTPUTS = {
    "key": ("logits", lambda f: {"logits": f, "other": 2 * f}),
    "attribute": ("logits", Result),
    "index": (1, lambda f: (2 * f, f)),
    "function": (lambda returned: returned["a"]["b"], lambda f: {"a": {"b": f}}),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_found_in_what_the_model_returns(name, tmp_path):
    """Training, prediction and files are those of the network that returns a tensor."""
    output, finish = OUTPUTS[name]
    wrapped, plain = Net(finish), Net(lambda f: f)
    plain.load_state_dict(wrapped.state_dict())
    x, y = torch.randn(12, 3), torch.randint(2, (12,))
    methods = [
        fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Dataset(x + 1), num_context=4)
        for net in (Network(wrapped, output=output), plain)
    ]
    for method in methods:
        fsvi.fit(method, (x, y), epochs=2, seed=0, progress=False)
    expected = methods[1].predict(x, 3).mean
    assert torch.equal(methods[0].predict(x, 3).mean, expected)
    methods[0].save(tmp_path / "file")
    again = Network(Net(finish), output=output) if callable(output) else Net(finish)
    assert torch.equal(fsvi.load(tmp_path / "file", again).predict(x, 3).mean, expected)


class Strict(nn.Module):
    """A network that checks its inputs, and possibly the number of values that it averages, in a way of its own."""

    def __init__(self, error: type[Exception], averages: bool) -> None:
        super().__init__()
        self.error, self.averages, self.body, self.head = error, averages, nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        if x.shape[-1] != 2:
            raise self.error("two columns are needed")
        if not self.averages:
            return self.head(torch.tanh(self.body(x)))
        values = self.head(torch.tanh(self.body(torch.stack([x, x + 1], 1))))
        if values.shape[-1] != 3:
            raise self.error("three values are needed")
        return values.mean(1)


@pytest.mark.parametrize("error", [AssertionError, KeyError])
def test_any_error_of_the_network_becomes_a_sentence(error):
    """The search for the head also calls the network in ways that it may not expect."""
    network = fsvi.Network(Strict(error, averages=False))
    assert network.examined(torch.randn(2, 2)).head == "head"
    with pytest.raises(InvalidInputError, match=r"does not accept inputs of shape \(5,\).*two columns"):
        network.examined(torch.randn(2, 5))
    with pytest.raises(HeadError, match="not the output of a linear layer"):
        fsvi.Network(Strict(error, averages=True)).examined(torch.randn(2, 2))


def test_images_of_one_channel_keep_convolutions_in_channels_last_order():
    network = Network(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 16, 2)))
    x = network.arranged(torch.randn(5, 1, 6, 6))
    with recording(network.module[1]) as seen:
        network(x, {"0.weight": torch.randn(3, 1, 3, 3)})
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
