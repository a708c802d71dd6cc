import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fsvi.networks.joining import is_joinable, split_norms
from fsvi.networks.network import Network


class Around(nn.Module):
    """A network that does `change` to its features."""

    def __init__(self, change):
        super().__init__()
        self.body, self.head, self.change = nn.Linear(3, 40), nn.Linear(40, 2), change
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.head(self.change(self, self.body(x)))


def observe(net, h):
    if net.training:
        net.seen += h.detach().max()
    return h


def refuse(net, h):
    if net.training:
        raise RuntimeError("this network trains on pairs alone")
    return h


def drop_at_random(net, h):
    return 0 * h if net.training and random.random() < 0 else h


CHANGES = {
    "nothing": (lambda net, h: h, True),
    "dropout": (lambda net, h: F.dropout(h, 0.5, training=net.training), False),
    "dropout that drops nothing here": (lambda net, h: F.dropout(h, 1e-6, training=net.training), False),
    "a layer dropped by Python's random numbers": (drop_at_random, False),
    "noise": (lambda net, h: h + 1e-9 * torch.randn_like(h) if net.training else h, False),
    "the batch's mean": (lambda net, h: h - h.mean(0), False),
    "the batch's maximum": (lambda net, h: h / h.abs().max(), False),
    "the batch's first": (lambda net, h: h - h[:1], False),
    "the batch's order": (lambda net, h: h.cumsum(0), False),
    "a scale in training": (lambda net, h: 2 * h if net.training else h, False),
    "a buffer that learns": (observe, False),
    "an error in training": (refuse, False),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("training", [True, False])
def test_found_by_what_the_network_does(name, training):
    change, expected = CHANGES[name]
    net = Around(change).train(training)
    net.head.eval()
    nn.init.zeros_(net.head.weight)  # outputs show nothing, features do
    g = torch.Generator().manual_seed(0)
    x, others = (torch.randn(2, 3, generator=g) for _ in range(2))
    state = torch.get_rng_state()
    assert is_joinable(Network(net, "head"), x, others) == expected
    assert (net.training, net.body.training, net.head.training) == (training, training, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.seen == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("mlp", "tied_features", "lstm", "transformer", "group_norm", "layer_norm")),
        *((name, True) for name in ("batch_norm", "resnet18")),
        *((name, False) for name in ("dropout", "transformer_dropout")),
    ],
)
def test_networks_of_all_kinds(make, name, expected):
    net, x = make(name, 4)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert is_joinable(Network(net).examined(x), x[:2], x[2:]) == expected
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_features_of_zero_say_nothing():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    assert not is_joinable(Network(net, "1"), torch.randn(2, 3), torch.randn(2, 3))


def test_batch_norm_learns_from_the_first_rows_and_treats_the_others_as_in_eval_mode():
    layer, x, others = nn.BatchNorm1d(3), torch.randn(8, 3), torch.randn(5, 3) + 4
    twin = copy.deepcopy(layer)
    with split_norms(nn.Sequential(layer), 8):
        joined = layer(torch.cat([x, others]))
        frozen = layer.eval()(others)
    torch.testing.assert_close(joined, torch.cat([twin(x), twin.eval()(others)]))
    torch.testing.assert_close(frozen, twin(others))
    torch.testing.assert_close(layer.running_var, twin.running_var)
    assert "forward" not in vars(layer) and layer.num_batches_tracked == 1


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_checkpoint_computes_again_with_the_same_statistics(is_inside):
    """Its second forward pass, while gradients are taken, changes the layer's statistics once more."""
    layer, x = nn.BatchNorm1d(3).double(), torch.randn(8, 3).double()
    gradients = []
    for checkpointed in (True, False):
        own = copy.deepcopy(layer)
        inputs = (torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double() + 4).requires_grad_()
        rows = torch.cat([x, inputs])
        with split_norms(nn.Sequential(own), 8):
            values = checkpoint(own, rows, use_reentrant=False) if checkpointed else own(rows)
            if is_inside:
                values.pow(3).sum().backward()
        if not is_inside:
            values.pow(3).sum().backward()
        gradients.append(inputs.grad)
    torch.testing.assert_close(*gradients)


class Doubled(nn.BatchNorm1d):
    def forward(self, input):
        return 2 * super().forward(input)


@pytest.mark.parametrize(("norm", "expected"), [(nn.BatchNorm1d, True), (Doubled, False)])
def test_layers_that_do_more_than_normalize_are_not_split(norm, expected):
    """Also where the features do not show it, as in a branch that starts at zero."""
    net, x = Around(lambda net, h: h + 0 * net.norm(h)), torch.randn(4, 3)
    net.norm = norm(40)
    assert is_joinable(Network(net, "head"), x[:2], x[2:]) == expected
