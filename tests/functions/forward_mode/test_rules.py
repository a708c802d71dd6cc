from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp
from torch.nn.utils.parametrizations import orthogonal

from fsvi.functions.forward_mode.rules import feature_layers, layers_jvp
from fsvi.functions.linearize import features_jvp
from fsvi.networks import cnn
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network


def hooked():
    layer = nn.Linear(3, 4)
    layer.register_forward_hook(lambda module, args, out: out.sin())
    return nn.Sequential(layer, nn.Linear(4, 2))


def hooked_head():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[1].register_forward_pre_hook(lambda module, args: (args[0].sin(),))
    return net


def shared():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    net[2].weight = net[0].weight
    return net


def twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(3, 2))


def frozen(*names):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


def around(*layers, **settings):
    """Images of 2 channels and 6×6 pixels through a convolution and these layers."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, **settings), *layers, nn.Flatten(), nn.LazyLinear(2))


def flat(*sizes):
    """A flattening, and linear layers."""
    return nn.Flatten(), *(nn.Linear(*pair) for pair in pairwise(sizes))


class First(nn.Module):
    """The first of what it is given."""

    def forward(self, pair):
        return pair[0]


IMAGE, VECTOR = (2, 6, 6), (3,)
SEQUENCES = {
    "dense": (lambda: frozen(), VECTOR),
    "first layer frozen": (lambda: frozen("0.weight", "0.bias"), VECTOR),
    "weight frozen": (lambda: frozen("2.weight"), VECTOR),
    "bias frozen": (lambda: frozen("2.bias"), VECTOR),
    "no bias": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Softplus(), nn.Linear(4, 2)), VECTOR),
    "nested": (lambda: nn.Sequential(frozen()[:2], nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 2))), VECTOR),
    "a layer twice": (twice, VECTOR),
    "a weight in two layers": (shared, VECTOR),
    "parametrized": (lambda: nn.Sequential(orthogonal(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 2)), VECTOR),
    "in place": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.1, inplace=True), nn.Linear(4, 2)), VECTOR),
    "a hook": (hooked, VECTOR),
    "the paper's": (lambda: cnn(2, 2, image_size=6), IMAGE),
    "pooled after": (lambda: around(nn.ReLU(inplace=True), nn.MaxPool2d(2)), IMAGE),
    "overlapping pools": (lambda: around(nn.MaxPool2d(3, 2, padding=1), nn.Identity()), IMAGE),
    "pools beyond the edge": (lambda: around(nn.MaxPool2d(4, 4, ceil_mode=True), nn.Dropout(0.5)), IMAGE),
    "images without channels": (lambda: nn.Sequential(nn.Linear(6, 6), nn.MaxPool2d(2), *flat(9, 2)), (6, 6)),
    "averages": (lambda: around(nn.AvgPool2d(2), nn.Tanh(), nn.AdaptiveAvgPool2d(2)), IMAGE),
    "strided": (lambda: around(nn.ReLU(), stride=2, groups=2, dilation=2), IMAGE),
    "the same size": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.ReLU(), *flat(108, 2)), IMAGE),
    "around the edge": (lambda: around(nn.ReLU(), padding_mode="circular"), IMAGE),
    "normalised": (lambda: around(nn.BatchNorm2d(4), nn.SiLU()), IMAGE),
    "pooled at once": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3), nn.Linear(3, 2)), IMAGE),
    "tokens": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 3), nn.Linear(3, 2)), (4,)),
}

OTHERS = {
    "a hook on the head": (hooked_head, VECTOR),
    "pairs": (lambda: nn.Sequential(nn.MaxPool2d(2, return_indices=True), First(), *flat(18, 3, 2)), IMAGE),
}


def build(name, layout):
    make, shape = {**SEQUENCES, **OTHERS}[name]
    net = make()
    x = torch.randint(7, (5, *shape)) if name == "tokens" else torch.randn(5, *shape, dtype=torch.float64)
    net.double().eval()(x)  # lazy layers see their inputs
    if x.dim() == 4:
        net, x = net.to(memory_format=layout), x.contiguous(memory_format=layout)
    split = Network(net).examined(x)
    net.train()  # the derivative is that of evaluation, whatever the mode
    params = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters() if p.requires_grad}
    tangents = {n: torch.randn_like(p).requires_grad_() for n, p in params.items() if n not in split.head_names}
    return split, params, tangents, x


def by_torch(split, params, tangents, x):
    """The same by `torch.func.jvp` through the whole network."""

    def features(moving):
        seen = []
        handle = split.linear.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with evaluating(split.module):
            functional_call(split.module, {**params, **moving}, (x,))
        handle.remove()
        return seen[-1]

    return jvp(features, ({n: params[n] for n in tangents},), (tangents,))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_value_change_and_their_gradients_are_those_of_torch(name, layout):
    split, params, tangents, x = build(name, layout)
    assert feature_layers(split) is not None
    leaves = [*params.values(), *tangents.values()]
    results = []
    for method in (features_jvp, by_torch):
        value, change = method(split, params, tangents, x)
        loss = value.sin().sum() + (value * change).cos().sum()
        results.append([value, change, *torch.autograd.grad(loss, leaves, allow_unused=True)])
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert results[0][1].abs().max() > 1e-3


def test_what_does_not_move_has_no_change():
    split, params, _, x = build("dense", torch.contiguous_format)
    value, change = layers_jvp(split.module, feature_layers(split), params, {}, x)
    assert change is None
    torch.testing.assert_close(value, split.with_features(x, params)[0])


def test_images_keep_their_memory_order():
    """A change in another order than the value's would be copied at every step."""
    split, params, tangents, x = build("the paper's", torch.channels_last)
    state = layers_jvp(split.module, feature_layers(split)[:5], params, tangents, x)
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in state)


@pytest.mark.parametrize("name", ["head_first", "tied_features", "transformer", "resnet18"])
def test_networks_with_a_forward_of_their_own_are_no_sequence(make, name):
    net, x = make(name)
    assert feature_layers(Network(net).examined(x)) is None


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_rules_do_not_know_is_left_to_torch(name):
    split, params, tangents, x = build(name, torch.contiguous_format)
    assert feature_layers(split) is None
    results = [method(split, params, tangents, x) for method in (features_jvp, by_torch)]
    torch.testing.assert_close(results[0], results[1])


def test_a_sequence_with_a_hook_or_a_forward_of_its_own_is_no_sequence():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return super().forward(2 * x)

    body = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    whole = nn.Sequential(body, nn.Linear(4, 2))
    x = torch.randn(4, 3)
    assert len(feature_layers(Network(whole).examined(x))) == 2
    own = nn.Sequential(Doubled(*body), nn.Linear(4, 2))
    assert [type(layer) for layer in feature_layers(Network(own).examined(x))] == [Doubled]
    whole.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    assert feature_layers(Network(whole).examined(x)) is None
