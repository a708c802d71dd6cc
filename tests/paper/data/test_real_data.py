"""The published data, where FSVI_DATA has it: sizes, known statistics, hashes."""

import pytest

from paper import data

pytestmark = pytest.mark.data


def load(name, split):
    if not data.available(name, split):
        pytest.skip(f"{name} {split} is not in FSVI_DATA or the cache")
    return data.load(name, split)


@pytest.mark.parametrize(
    ("name", "split", "shape", "classes", "mean", "std"),
    [
        ("fashion-mnist", "train", (60000, 1, 28, 28), 10, [0.28604], [0.35302]),
        ("fashion-mnist", "test", (10000, 1, 28, 28), 10, None, None),
        ("mnist", "train", (60000, 1, 28, 28), 10, [0.1307], [0.3081]),
        ("mnist", "test", (10000, 1, 28, 28), 10, None, None),
        ("kmnist", "test", (10000, 1, 28, 28), 10, None, None),
        ("notmnist", "test", (10000, 1, 28, 28), 10, None, None),
        ("retina", "test", (400, 3, 128, 128), 2, None, None),
    ],
)
def test_images(name, split, shape, classes, mean, std):
    found = load(name, split)
    assert tuple(found.x.shape) == shape and found.y.unique().tolist() == list(range(classes))
    if mean is not None:
        normalize = data.Normalize.of(found.x)
        assert normalize.mean == pytest.approx(mean, abs=5e-5) and normalize.std == pytest.approx(std, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "rows", "features"),
    [
        ("boston", 506, 13),
        ("concrete", 1030, 8),
        ("energy", 768, 8),
        ("wine", 1599, 11),
        ("yacht", 308, 6),
        ("protein", 45730, 9),
    ],
)
def test_tables(name, rows, features):
    found = load(name, "train")
    assert found.x.shape == (rows, features) and found.y.shape == (rows, 1)


# CIFAR and APTOS are not among the data that tests can have; test_readers reads small files in their formats.
@pytest.mark.parametrize("name", sorted(set(data.names()) - {"cifar10", "cifar10-c", "cifar100", "aptos"}))
def test_nothing_here_differs_from_what_was_published(name):
    results = {verdict for verdict, *_ in data.verify(name)}
    if results == {"missing"}:
        pytest.skip(f"{name} is not in FSVI_DATA or the cache")
    assert "wrong" not in results
