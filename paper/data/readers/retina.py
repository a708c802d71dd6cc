"""Fundus photographs graded 0 (none) to 4 (proliferative): EyePACS, APTOS 2019, and DeepDRiD's regular photographs.

Photographs of any size are cropped to their central square and resized to 128×128. The positive class is
sight-threatening retinopathy: grade 2 (moderate) or worse.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from fsvi.errors import FileFormatError
from fsvi.validation import first_line
from paper.data.dataset import Array, Arrays
from paper.data.readers.archives import read_content, walk

SIZE = 128


def read_folder(paths: Sequence[Path], image: str, grade: str) -> Arrays:
    """Photographs and grades from a CSV file and a folder of pictures, as Kaggle publishes them.

    Args:
        paths: The CSV file and the folder.
        image: The column with the names of the pictures, without suffixes.
        grade: The column with the grades.
    """
    table, folder = paths
    rows = _read_rows(table, read_content(table).decode("utf-8", "replace"), (image, grade))
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder: put the pictures that {table.name} names into it.")
    files = {file.stem: file for file in folder.iterdir() if file.is_file()}
    _check_complete(table, [row[image] for row in rows], files)
    pictures = (_picture(files[row[image]].name, files[row[image]].read_bytes()) for row in rows)
    return _stack(table, pictures, [row[grade] for row in rows])


def read_deepdrid(paths: Sequence[Path], split: str) -> Arrays:
    """Photographs and grades of one split of the DeepDRiD zip, which has labels.csv and the folder img.

    Args:
        paths: The files of the source.
        split: The split.
    """
    archive = paths[0]
    members = dict(walk(archive, lambda name: name == "labels.csv" or name.startswith("img/")))
    if "labels.csv" not in members:
        raise FileFormatError(f"{archive} does not have labels.csv, so it is not the DeepDRiD zip.")
    text = members.pop("labels.csv").decode("utf-8", "replace")
    rows = [row for row in _read_rows(archive, text, ("image_id", "split", "dr_level")) if row["split"] == split]
    pictures = {PurePosixPath(name).stem: content for name, content in members.items()}
    _check_complete(archive, [row["image_id"] for row in rows], pictures)
    decoded = (_picture(row["image_id"], pictures[row["image_id"]]) for row in rows)
    return _stack(archive, decoded, [row["dr_level"] for row in rows])


def _read_rows(path: Path, text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(text)))
    absent = [column for column in columns if not rows or column not in rows[0]]
    if absent:
        raise FileFormatError(f"{path} has no labels with the columns {', '.join(columns)}: {absent[0]!r} is missing.")
    for row in rows:
        short = [column for column in columns if row[column] is None]
        if short:
            start = ",".join(filter(None, row.values()))
            raise FileFormatError(f"{path} has the line {start!r} without {short[0]!r}: complete or delete the line.")
    return rows


def _check_complete(path: Path, wanted: Sequence[str], present: Iterable[str]) -> None:
    missing = sorted(set(wanted) - set(present))
    if missing:
        raise FileFormatError(
            f"{path} labels {len(wanted)} pictures, but {len(missing)} of them are missing, the first {missing[0]!r}: "
            "unpack all pictures next to it."
        )


def _picture(name: str, content: bytes) -> Array:
    from PIL import Image, ImageOps

    try:
        image = Image.open(io.BytesIO(content))
        image.draft("RGB", (SIZE, SIZE))  # lets JPEG decode at about this size, many times faster
        return np.asarray(ImageOps.fit(image.convert("RGB"), (SIZE, SIZE)))
    except OSError as error:
        raise FileFormatError(f"the picture {name} cannot be read ({first_line(error)}): download it again.") from error


def _stack(path: Path, pictures: Iterable[Array], grades: Sequence[str]) -> Arrays:
    if not set(grades) <= set("01234"):
        raise FileFormatError(f"{path} has grades {sorted(set(grades) - set('01234'))[:3]}; they must be 0 to 4.")
    images = np.empty((len(grades), 3, SIZE, SIZE), np.uint8)
    for i, picture in enumerate(pictures):
        images[i] = picture.transpose(2, 0, 1)
    return images, np.array(grades, dtype=np.int64)
