import os
from pathlib import Path

import numpy as np
import pytest
import torch

from paper.data.toys import oat1d, snelson, subspace


@pytest.fixture
def toy1d_folder() -> Path:
    if "FSVI_DATA" not in os.environ:
        pytest.skip("FSVI_DATA is not set")
    folder = Path(os.environ["FSVI_DATA"]) / "toy1d"
    if not folder.is_dir():
        pytest.skip(f"no folder toy1d in FSVI_DATA={os.environ['FSVI_DATA']}")
    return folder


def test_oat1d_is_two_clusters_on_one_function():
    toy = oat1d(num=500)
    assert toy.x_raw.abs().min() >= 3 and toy.x_raw.abs().max() <= 7
    assert torch.equal(toy.x, toy.x_raw) and torch.equal(toy.y, toy.y_raw)
    random = np.random.RandomState(2)
    W, b = random.randn(30), random.rand(30) * 2 * np.pi
    clean = np.cos(np.outer(toy.x_raw.double().numpy(), W) + b).sum(1)
    assert np.std(toy.y_raw[:, 0].numpy() - clean) == pytest.approx(0.05, rel=0.1)
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
