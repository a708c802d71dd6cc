"""SVHN, notMNIST, tables and retina, from small files in their published layouts."""

import gzip
import io
import zipfile

import numpy as np
import pytest
import torch
from scipy.io import savemat

from data_files import images, picture, write_tar, write_zip
from fsvi import data
from fsvi.errors import FileFormatError

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


def write_table(path, text, packed=False):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def test_prepared_table_has_the_target_last(root):
    write_table(root / "uci" / "yacht.csv.gz", "x0,x1,y\n1,2,3\n4,5,6.5\n", packed=True)
    table = data.load("yacht")
    assert table.x.dtype == table.y.dtype == torch.float64
    assert table.x.tolist() == [[1, 2], [4, 5]] and table.y.tolist() == [[3], [6.5]]


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("wine", "winequality-red.csv", '"a";"b";"quality"\n1;2;3\n4;5;6.5\n'),
        ("yacht", "yacht_hydrodynamics.data", "1 2 3\n4  5 6.5\n\n"),
        ("boston", "housing.data", " 1 2   3\n 4 5 6.5\n"),
        ("protein", "CASP.csv", "RMSD,F1,F2\n3,1,2\n6.5,4,5\n"),
    ],
)
def test_published_tables_give_the_same_as_the_prepared_one(root, name, file, text):
    write_table(root / "uci" / file, text)
    published = data.load(name)
    assert published.x.tolist() == [[1, 2], [4, 5]] and published.y.tolist() == [[3], [6.5]]
    write_table(root / "uci" / f"{name}.csv.gz", "x0,x1,y\n1,2,3\n4,5,6.5\n", packed=True)
    assert data.load(name).sha256 == published.sha256


@pytest.mark.parametrize("text", ["", "x,y\n1\n2\n", "x,y\n1,two\n", "x,y\n1,nan\n", "x,y\n1,2\n3\n"])
@pytest.mark.filterwarnings("ignore:.*no data")
def test_bad_tables_give_one_sentence(root, text):
    write_table(root / "uci" / "yacht.csv.gz", text)
    with pytest.raises(FileFormatError, match=r"yacht\.csv\.gz"):
        data.load("yacht")


GRADES = [0, 1, 2, 3, 4]


def photograph(size=(128, 128), colour=0):
    return picture(np.full((*size, 3), colour, np.uint8), "JPEG")


def deepdrid(grades=GRADES):
    rows = "".join(f"{i}_l1,{'training' if i % 2 else 'evaluation'},{i},{grade}\r\n" for i, grade in enumerate(grades))
    pictures = {f"img/{i}_l1.jpg": photograph(colour=10 * i) for i in range(len(grades))}
    return {"labels.csv": f"image_id,split,patient_id,dr_level\r\n{rows}".encode()} | pictures


def test_deepdrid_splits_grades_and_labels(root):
    write_zip(root / "retina" / "deepdrid128.zip", deepdrid())
    train, test = data.load("retina", "train"), data.load("retina", "test")
    assert train.grade.tolist() == [1, 3] and train.y.tolist() == [0, 1] and train.y.dtype == torch.int64
    assert test.grade.tolist() == [0, 2, 4] and test.y.tolist() == [0, 1, 1]
    assert train.x.shape == (2, 3, 128, 128) and [round(float(x.float().mean())) for x in train.x] == [10, 30]
    assert "DeepDRiD" in train.note
    with pytest.raises(FileFormatError, match="no examples"):
        data.load("retina", "validation")


def test_eyepacs_layout_goes_before_the_zip_and_any_size_is_resized(root):
    write_zip(root / "retina" / "deepdrid128.zip", deepdrid())
    folder = root / "retina" / "eyepacs" / "train"
    folder.mkdir(parents=True)
    (folder / "10_left.jpeg").write_bytes(photograph((400, 600), 50))
    (folder / "10_right.jpeg").write_bytes(photograph((90, 70), 200))
    (folder.parent / "trainLabels.csv").write_text("image,level\n10_right,4\n10_left,1\n")
    train = data.load("retina", "train")
    assert train.grade.tolist() == [4, 1] and train.y.tolist() == [1, 0] and train.note == ""
    assert [round(float(x.float().mean())) for x in train.x] == [200, 50]


def test_resizing_keeps_the_central_square(root):
    wide = np.zeros((100, 300, 3), np.uint8)
    wide[:, 100:200] = 255
    folder = root / "retina" / "aptos" / "train_images"
    folder.mkdir(parents=True)
    (folder / "a1.png").write_bytes(picture(wide))
    (folder.parent / "train.csv").write_text("id_code,diagnosis\na1,2\n")
    shifted = data.load("aptos", "test")
    assert shifted.y.tolist() == [1] and int(shifted.x[..., 2:-2].min()) > 250


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels.csv": b"image_id,split\n"}, "columns"),
        ({"labels.csv": b"image_id,split,dr_level\n99_l1,training,2\n"}, "1 of them"),
        ({"labels.csv": b"image_id,split,dr_level\n1_l1,training,7\n"}, "grades"),
        ({"img/1_l1.jpg": b"no picture"}, "1_l1"),
    ],
)
def test_retina_labels_that_do_not_match_pictures(root, change, sentence):
    write_zip(root / "retina" / "deepdrid128.zip", deepdrid() | change)
    with pytest.raises(FileFormatError, match=sentence):
        data.load("retina", "train")


def test_a_zip_without_labels(root):
    write_zip(root / "retina" / "deepdrid128.zip", {"img/1.jpg": photograph()})
    with pytest.raises(FileFormatError, match=r"labels\.csv"):
        data.load("retina", "train")


def eyepacs(root, labels):
    folder = root / "retina" / "eyepacs" / "train"
    folder.mkdir(parents=True)
    (folder / "10_left.jpeg").write_bytes(photograph())
    (folder.parent / "trainLabels.csv").write_text(labels)
    return folder


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ("image,level\n10_left\n10_left,bad\n", "'level'"),
        ("level,image\n2,10_left\n2\n", "'image'"),
        ("image,level\n10_left,\n10_left,bad\n", r"\['', 'bad'\]"),
    ],
)
def test_eyepacs_labels_cut_short_give_one_sentence(root, labels, sentence):
    folder = eyepacs(root, labels)
    with pytest.raises(FileFormatError, match=sentence) as raised:
        data.load("retina", "train")
    assert str(raised.value).startswith(str(folder.parent / "trainLabels.csv"))


def test_a_file_in_place_of_the_folder_of_pictures(root):
    folder = eyepacs(root, "image,level\n10_left,1\n")
    (folder / "10_left.jpeg").unlink()
    folder.rmdir()
    folder.write_bytes(b"train.zip.001")
    with pytest.raises(FileFormatError, match=r"eyepacs/train .*folder"):
        data.load("retina", "train")


def test_a_folder_in_place_of_the_labels_or_a_picture(root):
    folder = eyepacs(root, "image,level\n10_left,1\n10_right,1\n")
    (folder / "10_right").mkdir()
    with pytest.raises(FileFormatError, match="'10_right'"):
        data.load("retina", "train")
    (folder.parent / "trainLabels.csv").unlink()
    (folder.parent / "trainLabels.csv").mkdir()
    with pytest.raises(FileFormatError, match=r"trainLabels\.csv"):
        data.load("retina", "train")
