import gzip
import struct

import numpy as np
import pytest

from data_files import idx, write_mnist
from fsvi.errors import FileFormatError
from paper import data
from paper.data.readers.idx import read_idx

pytestmark = pytest.mark.usefixtures("any_content")


def _damage(content: bytes, how: str) -> bytes:
    whole = gzip.decompress(content)
    return {
        "cut gzip": content[: len(content) // 2],
        "damaged gzip": content[:100] + bytes(50) + content[150:],
        "cut idx": gzip.compress(whole[:-5]),
        "long idx": gzip.compress(whole + b"x"),
        "other format": b"<html>not found</html>",
        "empty": b"",
        "only a header": whole[:6],
        "labels for images": idx(np.zeros(7, np.uint8)),
        "no images": idx(np.zeros((0, 28, 28), np.uint8)),
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "cut gzip",
        "damaged gzip",
        "cut idx",
        "long idx",
        "other format",
        "empty",
        "only a header",
        "labels for images",
        "no images",
    ],
)
def test_damaged_files_give_one_sentence(root, how):
    write_mnist(root / "mnist")
    path = root / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(_damage(path.read_bytes(), how))
    with pytest.raises(FileFormatError) as raised:
        data.load("mnist", "test")
    message = str(raised.value)
    assert "mnist" in message and "\n" not in message and message.endswith(".") and ". " not in message


@pytest.mark.parametrize("shape", [(3,), (2, 4, 5), (1, 2, 3, 4)])
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_an_array_comes_back(tmp_path, shape, pack):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "file").write_bytes(pack(idx(array)))
    np.testing.assert_array_equal(read_idx(tmp_path / "file"), array)


def test_another_type_than_bytes_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(bytes([0, 0, 0x0D, 1]) + struct.pack(">I", 1) + bytes(4))  # float32
    with pytest.raises(FileFormatError, match="idx"):
        read_idx(tmp_path / "file")
