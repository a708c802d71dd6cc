import math

import pytest
import torch

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.networks import RangeFeatures, table_mlp
from fsvi.networks.description import build, describe


@pytest.fixture
def rows():
    return torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.2])


def test_on_training_rows_it_is_an_ordinary_network(rows):
    net = table_mlp(rows, (8, 4), 2, "tanh")
    features = net[0]
    expected = features.layers(rows) @ net[1].weight[:, :4].T + net[1].bias
    torch.testing.assert_close(net(rows), expected)
    assert (features(rows)[:, 4:] == 0).all()


def test_outside_features_are_those_of_the_formula(rows):
    features = table_mlp(rows, (8, 4), 2)[0]
    std = rows.std(0, correction=0)
    x = rows[:1].clone()
    x[0, 1] = rows[:, 1].max() + 2.5 * std[1]  # the range ends a quarter of one beyond it
    x[0, 2] = rows[:, 2].min() - 1.5 * std[2]
    e = torch.tensor([0.0, 2.25**2 / 2.75, -(1.25**2) / 1.75])
    expected = torch.cat([features.layers(x)[0], 10 * math.sqrt(4) * e]) / math.sqrt(1 + e.square().sum())
    torch.testing.assert_close(features(x)[0], expected)


def test_the_mean_far_away_is_the_bias(rows):
    torch.manual_seed(0)
    net = table_mlp(rows, (8, 4), 2, "tanh")
    far = rows + torch.tensor([0.0, 0.0, -1e6])
    torch.testing.assert_close(net(far), net[1].bias.expand(len(rows), 2), atol=1e-3, rtol=0)


def test_outliers_do_not_widen_the_range(rows):
    rows = torch.cat([rows, torch.full((1, 3), 1000.0)])
    features = RangeFeatures(3, (4,))
    features.see(rows)
    limit = rows.mean(0) + 5 * rows.std(0, correction=0)
    torch.testing.assert_close(features.high, limit)
    assert (features.low > rows.amin(0) - rows.std(0)).all()


def test_a_constant_column_is_left_by_any_other_value():
    rows = torch.cat([torch.randn(50, 1), torch.full((50, 1), 3.0)], 1)
    features = RangeFeatures(2, (4,))
    features.see(rows)
    x = torch.tensor([[0.0, 3.0], [0.0, 5.0]])
    far = features(x)[:, 4:]
    assert (far[0] == 0).all() and far[1, 1] > 0 and far.isfinite().all()


def test_it_can_be_saved_with_a_method(rows, tmp_path):
    method = fsvi.MAP(table_mlp(rows, (4,), 2).double(), fsvi.Categorical())
    method.save(tmp_path / "model")
    x = 10 * rows.double()
    again = fsvi.load(tmp_path / "model")
    torch.testing.assert_close(again.predict(x).mean, method.predict(x).mean, rtol=0, atol=0)
    assert isinstance(build(describe(method.net))[0], RangeFeatures)


def test_the_head_is_found(rows):
    method = fsvi.FSVI(table_mlp(rows, (4,), 2), fsvi.Categorical(), fsvi.contexts.ShiftedRows())
    method.function_kl(rows[:4])
    assert method.network.head == "1"


def test_wrong_settings_are_refused():
    with pytest.raises(InvalidInputError, match="activation"):
        RangeFeatures(2, (4,), "sine")
    with pytest.raises(InvalidInputError, match="hidden"):
        RangeFeatures(2, ())
