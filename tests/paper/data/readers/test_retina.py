import numpy as np
import pytest
import torch

from data_files import picture, write_zip
from fsvi.errors import FileFormatError
from paper import data

pytestmark = pytest.mark.usefixtures("any_content")


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
        ({"labels.csv": b"image_id,split,dr_level\n99_l1,training,2\n"}, "1 of them are missing"),
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
    with pytest.raises(FileFormatError, match="1 of them are missing, the first '10_right'"):
        data.load("retina", "train")
    (folder.parent / "trainLabels.csv").unlink()
    (folder.parent / "trainLabels.csv").mkdir()
    with pytest.raises(FileFormatError, match=r"trainLabels\.csv"):
        data.load("retina", "train")
