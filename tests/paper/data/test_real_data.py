"""The published data, where FSVI_DATA has it: sizes, known statistics, hashes."""

import pytest

from paper import data

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("name", "split", "shape"),
    [
        ("fashion-mnist", "train", (60000, 1, 28, 28)),
        ("mnist", "train", (60000, 1, 28, 28)),
        ("kmnist", "test", (10000, 1, 28, 28)),
        ("notmnist", "test", (10000, 1, 28, 28)),
        ("svhn", "test", (10000, 3, 32, 32)),
        ("retina", "test", (400, 3, 128, 128)),
        ("boston", "train", (506, 13)),
        ("protein", "train", (45730, 9)),
    ],
)
def test_published_sizes(name, split, shape):
    if not data.available(name, split):
        pytest.skip(f"{name} {split} is not in FSVI_DATA or the cache")
    found = data.load(name, split)
    assert tuple(found.x.shape) == shape
    if name == "fashion-mnist":
        normalize = data.Normalize.of(found.x)
        assert (normalize.mean[0], normalize.std[0]) == pytest.approx((0.28604, 0.35302), abs=5e-5)


# CIFAR and APTOS are not among the data that tests can have; test_readers reads small files in their formats.
@pytest.mark.parametrize("name", sorted(set(data.names()) - {"cifar10", "cifar100", "aptos"}))
def test_nothing_here_differs_from_what_was_published(name):
    results = {verdict for verdict, *_ in data.verify(name)}
    if results == {"missing"}:
        pytest.skip(f"{name} is not in FSVI_DATA or the cache")
    assert "wrong" not in results
