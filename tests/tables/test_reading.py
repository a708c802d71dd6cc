import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.tables import reading
from fsvi.tables.reading import TableReader, read_table

GOOD = "a,b\n1,x\n2,NA\n3,z\n"


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_separators(tmp_path, mark):
    table = read_table(write(tmp_path / "t.csv", GOOD.replace(",", mark)))
    assert table.columns["a"].tolist() == ["1", "2", "3"] and table.columns["b"].tolist() == ["x", None, "z"]
    assert table.lines.tolist() == [2, 3, 4]


def test_missing_values_and_spaces(tmp_path):
    cells = ["", "  ", "NA", "n/a", "NaN", "null", "None", "?", "-", "  red "]
    table = read_table(write(tmp_path / "t.csv", "a,b\n" + "".join(f"1,{cell}\n" for cell in cells)))
    assert table.columns["b"].tolist() == [*[None] * 9, "red"]


def test_decimal_commas_between_semicolons(tmp_path):
    table = read_table(write(tmp_path / "t.csv", "a;b\n1,5;x, y\n"))
    assert table.columns["a"].tolist() == ["1.5"] and table.columns["b"].tolist() == ["x, y"]


def test_a_byte_order_mark_empty_lines_and_quoted_line_ends(tmp_path):
    text = '\ufeff\na,b,\n\n1,"two\nlines",\n2,x,\n'
    table = read_table(write(tmp_path / "t.csv", text))
    assert table.names == ["a", "b"] and table.columns["b"].tolist() == ["two\nlines", "x"]
    assert table.lines.tolist() == [2, 3]


@pytest.mark.parametrize("row", ["1,2,3", "21", '"21'])
def test_a_row_of_the_wrong_length_is_refused(tmp_path, row):
    rows = "".join(f"{i},x\n" for i in range(20))
    with pytest.raises(FileFormatError, match="Row #22: Expected 2 columns"):
        read_table(write(tmp_path / "t.csv", f"a,b\n{rows}{row}\n21,y\n"))


def test_parts_have_their_lines_and_columns_to_carry_over(tmp_path):
    reader = TableReader(write(tmp_path / "t.csv", "id,a, b\n" + "".join(f" {i},{i},x\n" for i in range(20))))
    parts = list(reader.parts(8, ["a"], ["id"]))
    assert reader.names == ["id", "a", "b"] and [len(table) for table, _ in parts] == [8, 8, 4]
    assert np.concatenate([table.lines for table, _ in parts]).tolist() == list(range(2, 22))
    assert parts[0][0].names == ["a"] and parts[2][1]["id"].to_pylist() == [" 16", " 17", " 18", " 19"]
    with pytest.raises(InvalidInputError, match="'name' to keep: it has 'id', 'a', 'b'"):
        next(reader.parts(8, keep=["name"]))


def test_a_quotation_mark_that_is_never_closed_does_not_swallow_rows(tmp_path):
    rows = "".join(f"{i},x\n" for i in range(50))
    with pytest.raises(FileFormatError, match="never closed"):
        read_table(write(tmp_path / "t.csv", f'a,b\n{rows}51,"x\n52,x\n53,x\n'))
    table = read_table(write(tmp_path / "t.csv", f'a,b\n{rows}51,a 5" pipe\n53,x\n'))
    assert len(table) == 52
    table = read_table(write(tmp_path / "t.csv", f'a,b\n{rows}53,"two\nlines"\n'))
    assert len(table) == 51 and table.columns["b"][50] == "two\nlines"


def test_parquet_text_that_is_not_utf_8_is_named(tmp_path):
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32))
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe\xfd")])
    pa.parquet.write_table(pa.table({"a": broken}), tmp_path / "t.parquet")
    with pytest.raises(FileFormatError, match="UTF-8"):
        read_table(tmp_path / "t.parquet")


def test_names_of_files_need_not_be_text(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    assert len(read_table(write(path, GOOD))) == 3
    pa.parquet.write_table(pa.table({"a": [1]}), pa.OSFile(os.fsencode(path.with_suffix(".parquet")), "wb"))
    assert len(read_table(path.with_suffix(".parquet"))) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("1,2\n3,4\n", "names"),
        ("a,a\n3,4\n", "two columns called 'a'"),
        (b"a,b\n\xff\xfe,2\n", "UTF-8"),
    ],
)
def test_files_that_are_no_tables(tmp_path, text, words):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(FileFormatError, match=words):
        read_table(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileFormatError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InvalidInputError, match="xlsx"):
        read_table(write(tmp_path / "t.xlsx", GOOD))
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_table(write(tmp_path / "t.csv.gz", GOOD))


def test_compressed_files(tmp_path):
    table = read_table(write(tmp_path / "t.csv.gz", gzip.compress(GOOD.encode())))
    assert table.columns["a"].tolist() == ["1", "2", "3"]


def test_a_file_that_is_too_large_is_refused_while_it_is_read(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", "a,b\n" + "1,x\n" * 500)
    monkeypatch.setattr(reading, "_MOST_CELLS", 900)
    with pytest.raises(InvalidInputError, match="more than 900 cells"):
        read_table(path)


def test_parquet(tmp_path):
    polars = pytest.importorskip("polars")
    path = tmp_path / "t.parquet"
    polars.DataFrame({"a": [1, 2, None, 4], "b": ["x", None, "z", "w"]}).write_parquet(path)
    table = read_table(path)
    np.testing.assert_array_equal(table.columns["a"], [1, 2, np.nan, 4])
    assert table.columns["b"].tolist() == ["x", None, "z", "w"]
    assert [table.lines.tolist() for table, _ in TableReader(path).parts(3)] == [[1, 2, 3], [4]]
    write(path, path.read_bytes()[:50])
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_table(path)
