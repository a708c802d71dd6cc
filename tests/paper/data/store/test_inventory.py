import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from data_files import idx, write_mnist
from fsvi.errors import InvalidInputError
from paper import data
from paper.data.store.catalog import ENTRIES
from paper.data.store.files import File
from paper.data.store.inventory import FileCheck


def results(name):
    return {check.file.rpartition("/")[2]: check.result for check in data.verify(name)}


def test_missing_files_are_named(root):
    assert set(results("mnist").values()) == {"missing"} and len(results("mnist")) == 4
    assert results("retina")["trainLabels.csv"] == "missing"
    assert all(check.path is None for check in data.verify("cifar10"))


def test_other_content_than_the_published_is_wrong(root):
    write_mnist(root / "mnist")
    found = results("mnist")
    assert found["t10k-images-idx3-ubyte.gz"] == found["t10k-labels-idx1-ubyte.gz"] == "wrong"
    assert found["train-images-idx3-ubyte.gz"] == "missing"
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bbroken")
    assert results("mnist")["t10k-images-idx3-ubyte.gz"] == "wrong"


@pytest.mark.parametrize("level", [1, 9, None])
def test_the_known_content_is_ok_however_it_is_packed(root, monkeypatch, level):
    content = b"x0,y\n1,2\n"
    file = File("uci/yacht.csv.gz", digest=f"sha256:{hashlib.sha256(content).hexdigest()}")
    source = replace(ENTRIES["yacht"].splits["train"][0], files=(file,))
    monkeypatch.setitem(ENTRIES, "yacht", replace(ENTRIES["yacht"], splits={"train": (source,)}))
    path = root / "uci" / ("yacht.csv" if level is None else "yacht.csv.gz")
    path.parent.mkdir()
    path.write_bytes(content if level is None else gzip.compress(content, level))
    assert data.verify("yacht") == [FileCheck("uci/yacht.csv.gz", path, "ok")]


def test_no_known_hash_is_unverified(root):
    (root / "uci").mkdir()
    (root / "uci" / "winequality-red.csv").write_text('"a";"quality"\n1;2\n')
    (root / "cifar10" / "cifar-10-batches-py").mkdir(parents=True)
    assert results("wine") == {"winequality-red.csv": "unverified"}
    assert results("cifar10") == {"cifar-10-batches-py": "unverified"}


def test_an_md5_says_nothing_of_an_unpacked_file(root):
    (root / "kmnist").mkdir()
    for part, dimensions in (("images-idx3", 3), ("labels-idx1", 1)):
        (root / "kmnist" / f"train-{part}-ubyte").write_bytes(idx(np.zeros([1] * dimensions, np.uint8)))
    assert results("kmnist")["train-images-idx3-ubyte.gz"] == "unverified"
    path = root / "kmnist" / "train-images-idx3-ubyte"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert results("kmnist")["train-images-idx3-ubyte.gz"] == "wrong"


def test_the_list_has_every_dataset_with_place_and_size(root, tmp_path):
    write_mnist(root / "mnist")
    write_mnist(tmp_path / "cache" / "fsvi" / "kmnist")
    write_mnist(root / "notmnist")
    rows = {row.name: row for row in data.catalog()}
    assert list(rows) == data.names()
    assert rows["mnist"].where == f"{root / 'mnist'} (test only)"
    assert rows["kmnist"].where == "cache (test only)" and rows["notmnist"].where == str(root / "notmnist")
    assert rows["mnist"].size == sum(path.stat().st_size for path in (root / "mnist").iterdir())
    assert (rows["cifar100"].where, rows["cifar100"].size) == ("not here", 0)
    assert all(row.license and row.description for row in rows.values())


def test_the_list_names_a_stand_in_until_the_published_files_are_here(root):
    (root / "svhn").mkdir()
    (root / "svhn" / "svhn_test_10k.npz").write_bytes(b"sample")
    (root / "kmnist").mkdir()
    write_mnist(root / "kmnist")
    rows = {row.name: row.where for row in data.catalog()}
    note = "first 10,000 SVHN test digits, cropped again from the full pictures"
    assert rows["svhn"] == f"{root / 'svhn'} (test only); {note}" and rows["kmnist"].endswith("kmnist (test only)")
    (root / "svhn" / "test_32x32.mat").write_bytes(b"published")
    assert {row.name: row.where for row in data.catalog()}["svhn"] == f"{root / 'svhn'} (test only)"


def test_unknown_names(root):
    for call in (data.verify, data.fetch):
        with pytest.raises(InvalidInputError, match="did you mean 'svhn'"):
            call("svnh")
