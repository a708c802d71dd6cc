import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fsvi.networks.joining import is_joinable


class Around(nn.Module):
    """A network that does `change` to its features."""

    def __init__(self, change):
        super().__init__()
        self.body, self.head, self.change = nn.Linear(3, 40), nn.Linear(40, 2), change

    def forward(self, x):
        return self.head(self.change(self, self.body(x)))


CHANGES = {
    "nothing": (lambda net, h: h, True),
    "dropout": (lambda net, h: F.dropout(h, 0.5, training=net.training), False),
    "dropout that drops nothing here": (lambda net, h: F.dropout(h, 1e-6, training=net.training), False),
    "noise": (lambda net, h: h + 1e-9 * torch.randn_like(h) if net.training else h, False),
    "the batch's mean": (lambda net, h: h - h.mean(0), False),
    "the batch's order": (lambda net, h: h + h.roll(1, 0), False),
    "a scale in training": (lambda net, h: 2 * h if net.training else h, False),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("training", [True, False])
def test_found_by_what_the_network_does(name, training):
    change, expected = CHANGES[name]
    net = Around(change).train(training)
    net.head.eval()
    state = torch.get_rng_state()
    assert is_joinable(net, torch.randn(2, 3, generator=torch.Generator().manual_seed(0))) == expected
    assert (net.training, net.body.training, net.head.training) == (training, training, False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("mlp", "tied_features", "lstm", "transformer", "group_norm", "layer_norm")),
        *((name, False) for name in ("dropout", "transformer_dropout", "batch_norm", "resnet18")),
    ],
)
def test_networks_of_all_kinds(make, name, expected):
    net, x = make(name, 2)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert is_joinable(net, x) == expected
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_a_network_that_counts_its_passes_is_left_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.passes += 1
            return self.head(x)

    net = Counting()
    assert is_joinable(net, torch.randn(2, 3))
    assert net.passes == 0
