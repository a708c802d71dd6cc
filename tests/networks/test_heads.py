import pytest
import torch
from torch import nn

from fsvi.errors import HeadError
from fsvi.networks import Network
from fsvi.networks.heads import apply_head, channels_last, guess_head, head_axis, head_layers


def test_layers_that_act_at_each_position_alone():
    net = nn.ModuleDict(
        {
            "dense": nn.Linear(2, 3),
            "one": nn.Conv2d(2, 3, 1),
            "valid": nn.Conv1d(2, 3, 1, padding="valid"),
            "wide": nn.Conv2d(2, 3, 3),
            "strided": nn.Conv2d(2, 3, 1, stride=2),
            "padded": nn.Conv2d(2, 3, 1, padding=1),
            "grouped": nn.Conv2d(2, 2, 1, groups=2),
        }
    )
    assert list(head_layers(net)) == ["dense", "one", "valid"]


def test_the_guess_is_a_dense_layer_that_learns():
    layers = {"first": nn.Linear(2, 2), "second": nn.Linear(2, 2).requires_grad_(False), "third": nn.Conv1d(2, 2, 1)}
    assert guess_head(layers) == "first"
    assert guess_head({"third": layers["third"]}) == "third"


def test_a_one_by_one_convolution_is_a_dense_layer():
    layer, x = nn.Conv2d(4, 3, 1), torch.randn(2, 4, 5, 6)
    expected = channels_last(layer(x), 1)
    torch.testing.assert_close(apply_head(channels_last(x, 1), layer.weight, layer.bias), expected)
    assert head_axis(layer, layer(x), x) == 1
    assert head_axis(layer, 2 * layer(x), x) is None


class Moved(nn.Module):
    """A dense layer over tokens, and whatever `move` does to its output."""

    def __init__(self, move) -> None:
        super().__init__()
        self.body, self.fc, self.move = nn.Linear(3, 4), nn.Linear(4, 2), move

    def forward(self, x):
        return self.move(self.fc(torch.tanh(self.body(x))))


MOVES = {
    "last token": (lambda f: f[:, -1], ()),
    "mean": (lambda f: f.mean(1), ()),
    "transposed": (lambda f: f.mT, (5,)),
    "first tokens": (lambda f: f[:, :2], (2,)),
}


@pytest.mark.parametrize("name", MOVES)
def test_outputs_that_are_moved_after_the_head(name):
    move, positions = MOVES[name]
    net, x = Moved(move), torch.randn(7, 5, 3)
    network = Network(net).examined(x)
    features, outputs = network.with_features(x)
    assert network.layout.positions == positions
    assert outputs.shape == (7, *positions, 2)
    torch.testing.assert_close(outputs, network(x))
    torch.testing.assert_close(apply_head(features, net.fc.weight, net.fc.bias), outputs)
    own = {"fc.weight": torch.randn(2, 4), "fc.bias": torch.randn(2)}
    torch.testing.assert_close(network.with_features(x, own)[1], network(x, own))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.mean(1).relu(),
        lambda f: f.amax(1),
        lambda f: f[:, -1].softmax(-1),
        lambda f: f.mean(1).clamp(-50, 50),
        lambda f: f.sum(1),  # adds up the bias too
    ],
    ids=["relu", "max", "softmax", "clamp", "sum"],
)
def test_outputs_that_are_changed_after_the_head_are_refused(change):
    with pytest.raises(HeadError, match="'fc'"):
        Network(Moved(change)).examined(torch.randn(7, 5, 3))
