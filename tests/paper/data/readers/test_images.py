import io
import zipfile

import numpy as np
import pytest
import torch
from scipy.io import savemat

from data_files import images, picture, write_tar
from fsvi.errors import FileFormatError
from paper import data

pytestmark = pytest.mark.usefixtures("any_content")


def test_svhn_official_file_has_zero_labelled_ten(root):
    pixels = images(3, 3, 32, 32)
    (root / "svhn").mkdir()
    savemat(root / "svhn" / "test_32x32.mat", {"X": pixels.transpose(2, 3, 1, 0), "y": [[10], [1], [9]]})
    split = data.load("svhn", "test")
    assert torch.equal(split.x, torch.from_numpy(pixels)) and split.y.tolist() == [0, 1, 9] and split.note == ""


def test_svhn_sample_says_so_and_yields_to_the_official_file(root):
    pixels = images(3, 3, 32, 32)
    (root / "svhn").mkdir()
    np.savez(root / "svhn" / "svhn_test_10k.npz", x=pixels.transpose(0, 2, 3, 1), y=np.array([5, 2, 1], np.uint8))
    split = data.load("svhn", "test")
    assert torch.equal(split.x, torch.from_numpy(pixels)) and split.y.tolist() == [5, 2, 1]
    assert "10,000" in split.note
    savemat(root / "svhn" / "test_32x32.mat", {"X": pixels.transpose(2, 3, 1, 0), "y": [[10], [1], [9]]})
    assert data.load("svhn", "test").note == ""


@pytest.mark.parametrize("name", ["test_32x32.mat", "svhn_test_10k.npz"])
@pytest.mark.parametrize("content", [b"", b"<html>", b"PK\x03\x04"])
def test_damaged_svhn_files(root, name, content):
    (root / "svhn").mkdir()
    (root / "svhn" / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=name):
        data.load("svhn", "test")


def packed(pixels, labels):
    file = io.BytesIO()
    np.savez_compressed(file, x=pixels, y=labels)
    return file.getvalue()


def open_bracket(content):
    """The header of an array with a bracket that is never closed, and a checksum that fits."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b")", b" "))
    return file.getvalue()


@pytest.mark.parametrize("damage", [lambda content: content[:60] + b"\xff" * 8 + content[68:], open_bracket])
def test_an_npz_file_damaged_inside_gives_one_sentence(root, damage):
    (root / "svhn").mkdir()
    content = packed(np.zeros((3, 32, 32, 3), np.uint8), np.arange(3))
    (root / "svhn" / "svhn_test_10k.npz").write_bytes(damage(content))
    with pytest.raises(FileFormatError, match=r"svhn_test_10k\.npz"):
        data.load("svhn", "test")


def test_notmnist_archive_leaves_unreadable_pictures_out(root):
    pixels = images(3, 28, 28)
    members = {"notMNIST_small/B/y.png": picture(pixels[1]), "notMNIST_small/A/x.png": picture(pixels[0])}
    members |= {"notMNIST_small/J/z.png": picture(pixels[2]), "notMNIST_small/A/broken.png": b""}
    write_tar(root / "notmnist" / "notMNIST_small.tar.gz", members | {"notMNIST_small/A/read.me": b"text"})
    split = data.load("notmnist", "test")
    order = split.y.argsort()
    assert torch.equal(split.x[order], torch.from_numpy(pixels)[:, None]) and split.y[order].tolist() == [0, 1, 9]


def test_the_first_notmnist_pictures_are_of_all_letters_and_always_the_same(root):
    pixels = images(200, 28, 28)
    names = [f"notMNIST_small/{'ABCDEFGHIJ'[i // 20]}/{i:03}.png" for i in range(200)]
    members = {name: picture(image) for name, image in zip(names, pixels, strict=True)}
    write_tar(root / "notmnist" / "notMNIST_small.tar.gz", members)
    split = data.load("notmnist", "test")
    assert len(split.y[:60].unique()) == 10 and split.y.bincount().tolist() == [20] * 10
    where = [next(i for i in range(200) if np.array_equal(pixels[i], x.numpy()[0])) for x in split.x]
    assert [i // 20 for i in where] == split.y.tolist()
    write_tar(root / "notmnist" / "notMNIST_small.tar.gz", dict(reversed(members.items())))
    assert data.load("notmnist", "test").sha256 == split.sha256


@pytest.mark.parametrize("size", [(28, 27), (1, 1), (64, 64)])
def test_a_notmnist_picture_of_another_size_is_named(root, size):
    members = {
        "notMNIST_small/A/x.png": picture(images(1, 28, 28)[0]),
        "notMNIST_small/B/y.png": picture(images(*size)),
    }
    write_tar(root / "notmnist" / "notMNIST_small.tar.gz", members)
    with pytest.raises(FileFormatError) as raised:
        data.load("notmnist", "test")
    message = str(raised.value)
    assert "notMNIST_small/B/y.png" in message and str(root / "notmnist" / "notMNIST_small.tar.gz") in message
    assert f"{size[1]}×{size[0]}" in message


@pytest.mark.parametrize("folder", ["AB", "K", "", "notMNIST_small"])
def test_only_folders_a_to_j_are_letters(root, folder):
    members = {
        "notMNIST_small/C/x.png": picture(images(1, 28, 28)[0]),
        f"{folder}/y.png": picture(images(1, 28, 28)[0]),
    }
    write_tar(root / "notmnist" / "notMNIST_small.tar.gz", members)
    assert data.load("notmnist", "test").y.tolist() == [2]
