import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fsvi.data import oat1d, snelson, subspace, two_moons


@pytest.fixture
def toy1d_folder() -> Path:
    if "FSVI_DATA" not in os.environ:
        pytest.skip("FSVI_DATA is not set")
    folder = Path(os.environ["FSVI_DATA"]) / "toy1d"
    if not folder.is_dir():
        pytest.skip(f"no folder toy1d in FSVI_DATA={os.environ['FSVI_DATA']}")
    return folder


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


def test_oat1d_is_two_clusters_on_one_function():
    toy = oat1d(num=500)
    assert toy.x_raw.abs().min() >= 3 and toy.x_raw.abs().max() <= 7
    assert torch.equal(toy.x, toy.x_raw) and torch.equal(toy.y, toy.y_raw)
    random = np.random.RandomState(2)
    W, b = random.randn(30), random.rand(30) * 2 * np.pi
    clean = np.cos(np.outer(toy.x_raw.double().numpy(), W) + b).sum(1)
    assert np.std(toy.y_raw[:, 0].numpy() - clean) == pytest.approx(toy.noise, rel=0.1)
    assert not torch.equal(oat1d(seed=3).y, oat1d().y)


@pytest.mark.data
def test_embedded_snelson_equals_its_source(toy1d_folder):
    toy = snelson(remove_gap=False)
    for values, name in ((toy.x_raw, "inputs"), (toy.y_raw, "outputs")):
        source = np.loadtxt(toy1d_folder / f"snelson_train_{name}.dat")
        assert np.array_equal(values[:, 0].numpy(), source.astype(np.float32))


@pytest.mark.data
def test_embedded_subspace_equals_its_source(toy1d_folder):
    toy = subspace()
    source = np.load(toy1d_folder / "subspace.npy").astype(np.float32)
    assert np.array_equal(torch.cat([toy.x_raw, toy.y_raw], 1).numpy(), source)
