import pytest
import torch
from torch import nn

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.networks import FadingFeatures, KnownRows, Network, mlp, table_mlp
from fsvi.networks.table_networks import with_distances


@pytest.fixture
def rows():
    return torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.2])


class Own(nn.Module):
    """A network with a layer inside of another, whose outputs are means over two positions."""

    def __init__(self, bias=True):
        super().__init__()
        self.parts = nn.ModuleDict({"hidden": nn.Linear(3, 6), "last": nn.Linear(6, 2, bias=bias)})

    def forward(self, x):
        return self.parts["last"](torch.stack([self.parts["hidden"](x).tanh(), x.repeat(1, 2)], 1)).mean(1)


@pytest.mark.parametrize("make", [lambda: mlp(3, (8, 4), 2), lambda: nn.Linear(3, 2), Own, lambda: Own(False)])
def test_the_function_stays_on_the_training_rows(make, rows):
    torch.manual_seed(0)
    net = make()
    network = Network(net).examined(rows[:2])
    known = KnownRows.of(rows)
    known.limit(torch.tensor([9.0, 99.0, 99.0, 99.0, 99.0]))
    wrapped = with_distances(network, known, 10.0)
    torch.testing.assert_close(wrapped(rows), net(rows))
    assert wrapped[0](rows - 1e6)[:, -5:].norm(dim=1).min() > 9.99
    assert Network(wrapped).examined(rows[:2]).head == "1" and isinstance(wrapped[0], FadingFeatures)


def test_a_convolution_or_a_layer_used_twice_has_no_distances(rows):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 3)

        def forward(self, x):
            return self.last(self.last(x).tanh())

    convolution = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv1d(3, 1, 1), nn.Flatten())
    for net in (Twice(), convolution):
        assert with_distances(Network(net).examined(rows[:2]), KnownRows.of(rows), 10.0) is None


def test_it_can_be_saved_with_a_method(rows, tmp_path):
    method = fsvi.MAP(table_mlp(rows, (4,), 2).double(), fsvi.Categorical())
    method.save(tmp_path / "model")
    x = 10 * rows.double()
    again = fsvi.load(tmp_path / "model")
    torch.testing.assert_close(again.predict(x).mean, method.predict(x).mean, rtol=0, atol=0)


def test_the_head_of_a_table_network_is_found(rows):
    method = fsvi.FSVI(table_mlp(rows, (4,), 2, "tanh"), fsvi.Categorical(), fsvi.contexts.ShiftedRows())
    method.function_kl(rows[:4])
    assert method.network.head == "1"


def test_wrong_settings_are_refused(rows):
    with pytest.raises(InvalidInputError, match="activation"):
        table_mlp(rows, (4,), 1, "sine")
