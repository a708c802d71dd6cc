import math

import torch
from torch import nn

from fsvi.networks import FadingFeatures, KnownRows
from fsvi.networks.description import build, describe
from fsvi.networks.fading import fade


def made():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    known = KnownRows.of(x)
    known.limit(torch.tensor([2.5, 4.0, 3.0, 3.0, 5.0]).double())
    torch.manual_seed(0)
    return x, FadingFeatures(nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double(), 4, known, 20.0)


def test_features_are_those_of_the_formula():
    x, features = made()
    rows = torch.stack([x[0], x[0] + torch.tensor([7.0, 0.0, -5.0]).double()])
    d = features.known(rows)
    e = torch.where(d >= 0, 1.0, -1.0) * d.square() / (0.5 + d.abs())
    whole = torch.cat([features.body(rows), torch.ones(2, 1).double(), 20 * e], 1)
    expected = whole / (1 + (e**2).sum(1, keepdim=True)).sqrt()
    torch.testing.assert_close(features(rows), expected)
    assert features(rows).shape[1] == features.out_features == 4 + 3 + 3
    assert (d[0] == 0).all() and d[1, 0] > 2 and d[1, 2] < -1


def test_far_away_only_distances_remain():
    x, features = made()
    far = features(x + 1e6)
    assert far[:, :5].abs().max() < 1e-3
    torch.testing.assert_close(far[:, 5:].norm(dim=1), torch.full((50,), 20.0).double(), rtol=1e-4, atol=0)


def test_fading_of_one_distance():
    softened, fading = fade(torch.tensor([[0.5, 0.0]]).double())
    assert math.isclose(float(softened[0, 0]), 0.25) and math.isclose(float(fading), 1 / math.sqrt(1 + 0.25**2))


def test_it_is_described_with_its_body():
    _, features = made()
    again = build(describe(nn.Sequential(features, nn.Linear(10, 1).double())))
    again[0].load_state_dict(features.state_dict())
    x = torch.randn(5, 3).double()
    torch.testing.assert_close(again[0](x), features(x), rtol=0, atol=0)

    class Own(nn.Linear):
        """A layer that files do not know."""

    features.body[0] = Own(3, 4).double()
    assert describe(features) is None
