import math

import pytest
import torch

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.networks import RangeFeatures, table_mlp
from fsvi.networks.description import build, describe
from fsvi.networks.ranges import forget_outside, margin, usual_distance, whiten


@pytest.fixture
def rows():
    return torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.2])


def test_on_training_rows_it_is_an_ordinary_network(rows):
    net = table_mlp(rows, (8, 4), 2, "tanh")
    features = net[0]
    expected = features.layers(rows) @ net[1].weight[:, :4].T + net[1].bias
    torch.testing.assert_close(net(rows), expected)
    assert (features(rows)[:, 4:-1] == 0).all() and features(rows)[:, -1].count_nonzero() <= 1


def test_outside_features_are_those_of_the_formula(rows):
    features = table_mlp(rows, (8, 4), 2)[0]
    std = rows.std(0, correction=0)
    x = rows[:1].clone()
    x[0, 1] = rows[:, 1].max() + 2.5 * std[1]  # the range ends a quarter of one beyond it
    x[0, 2] = rows[:, 2].min() - 1.5 * std[2]
    precision = torch.linalg.inv(torch.cov(rows.T, correction=0))
    deviation = x[0] - rows.mean(0)
    excess = (deviation @ precision @ deviation).sqrt() - features.radius
    d = torch.stack([torch.tensor(0.0), torch.tensor(2.25), torch.tensor(-1.25), excess])
    assert excess > 1
    e = d * d.abs() / (0.5 + d.abs())
    expected = torch.cat([features.layers(x)[0], 10 * math.sqrt(4) * e]) / math.sqrt(1 + e.square().sum())
    torch.testing.assert_close(features(x)[0], expected, rtol=2e-3, atol=1e-3)  # up to the ridge


def test_a_new_combination_of_usual_values_is_far():
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(300, 1, generator=generator)
    rows = common + 0.2 * torch.randn(300, 2, generator=generator)
    features = table_mlp(rows, (4,), 1)[0]
    far = features(torch.tensor([[1.5, 1.5], [1.5, -1.5]]))[:, 4:]
    assert (far[:, :2] == 0).all() and far[0, 2] == 0 and far[1, 2] > 10


def test_whitened_rows_have_no_correlations():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 4, generator=generator).double() @ torch.randn(4, 4, generator=generator).double()
    rows = torch.cat([rows, torch.full((200, 1), 7.0).double()], 1)
    white = (rows - rows.mean(0)) @ whiten(rows)
    expected = torch.cov((rows[:, :4]).T, correction=0)
    deviation = rows[:, :4] - rows[:, :4].mean(0)
    distances = (deviation @ torch.linalg.inv(expected) * deviation).sum(1).sqrt()
    torch.testing.assert_close(white.norm(dim=1), distances, rtol=0.05, atol=0)


def test_the_usual_distance_is_that_of_rows_left_out():
    rows = torch.randn(60, 10, generator=torch.Generator().manual_seed(0)).double()
    distances = ((rows - rows.mean(0)) @ whiten(rows)).norm(dim=1)
    left_out = []
    for i in range(60):
        others = rows[torch.arange(60) != i]
        left_out.append(float(((rows[i] - others.mean(0)) @ whiten(others)).norm()))
    expected = torch.tensor(left_out).double().quantile(0.999)
    torch.testing.assert_close(usual_distance(distances), expected, rtol=0.03, atol=0)
    assert distances.max() < 0.9 * expected


def test_few_new_rows_lie_outside_of_the_range_of_a_small_table():
    generator = torch.Generator().manual_seed(0)
    outside = []
    for _ in range(50):
        features = RangeFeatures(13, (4,))
        features.see(torch.randn(100, 13, generator=generator))
        new = torch.randn(100, 13, generator=generator)
        outside.append(((new < features.low) | (new > features.high)).any(1).float().mean())
    assert 0.005 < torch.stack(outside).mean() < 0.06
    assert margin(100, 13) > margin(100, 8) > margin(10_000, 4) == 0.25


def test_weights_of_distances_are_forgotten(rows):
    net = table_mlp(rows, (4,), 2)
    torch.nn.init.ones_(net[1].weight)
    forget_outside(net)
    assert (net[1].weight[:, :4] == 1).all() and (net[1].weight[:, 4:] == 0).all()
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    before = other[1].weight.clone()
    forget_outside(other)
    assert torch.equal(other[1].weight, before)


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
