"""Small files in the formats that datasets come in."""

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def images(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def write_mnist(folder: Path, n: int = 7, labels: int | None = None, stem: str = "t10k") -> np.ndarray:
    """Both idx files of a split; returns the images."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = images(n, 28, 28)
    (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
    counted = np.arange(labels if labels is not None else n, dtype=np.uint8) % 10
    (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(counted)))
    return pixels


def picture(pixels: np.ndarray, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
