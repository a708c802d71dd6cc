import gzip
import io

import numpy as np
import pytest
import torch

from fsvi.errors import FileFormatError
from paper import data

pytestmark = pytest.mark.usefixtures("any_content")


def packed(pixels, labels):
    file = io.BytesIO()
    np.savez_compressed(file, x=pixels, y=labels)
    return file.getvalue()


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
