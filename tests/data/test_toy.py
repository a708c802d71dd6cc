import pytest
import torch

from fsvi.data import snelson, two_moons


def test_two_moons_types_balance_and_seed():
    x, y = two_moons()
    assert x.shape == (200, 2) and x.dtype == torch.float32
    assert y.shape == (200,) and y.dtype == torch.int64
    assert y.bincount().tolist() == [100, 100]
    assert torch.equal(x, two_moons(seed=0)[0])
    assert not torch.equal(x, two_moons(seed=1)[0])


def test_two_moons_noise_is_the_distance_from_the_half_circles():
    x, y = two_moons(4000, noise=0.1)
    centre = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[y]
    assert ((x - centre).norm(dim=1) - 1).std().item() == pytest.approx(0.1, rel=0.05)


def test_snelsons_points_have_a_gap_unless_it_is_wanted():
    x, y = snelson()
    assert x.shape == y.shape == (148, 1) and x.dtype == torch.float32
    assert not ((x >= 1.5) & (x <= 3)).any() and len(snelson(remove_gap=False)[0]) == 200
