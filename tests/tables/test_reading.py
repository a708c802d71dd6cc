import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.tables import reading
from fsvi.tables.reading import read_chunks, read_table

GOOD = "a,b\n1,x\n2,NA\n3,z\n"


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_separators(tmp_path, mark):
    table = read_table(write(tmp_path / "t.csv", GOOD.replace(",", mark))).table
    assert table.columns["a"].tolist() == ["1", "2", "3"] and table.columns["b"].tolist() == ["x", None, "z"]
    assert table.lines.tolist() == [2, 3, 4]


def test_missing_values_and_spaces(tmp_path):
    cells = ["", "  ", "NA", "n/a", "NaN", "null", "None", "?", "-", "  red "]
    table = read_table(write(tmp_path / "t.csv", "a,b\n" + "".join(f"1,{cell}\n" for cell in cells))).table
    assert table.columns["b"].tolist() == [*[None] * 9, "red"]


def test_decimal_commas_between_semicolons(tmp_path):
    table = read_table(write(tmp_path / "t.csv", "a;b\n1,5;x, y\n")).table
    assert table.columns["a"].tolist() == ["1.5"] and table.columns["b"].tolist() == ["x, y"]


def test_a_byte_order_mark_empty_lines_and_quoted_line_ends(tmp_path):
    text = '\ufeff\na,b,\n\n1,"two\nlines",\n2,x,\n'
    table = read_table(write(tmp_path / "t.csv", text)).table
    assert table.names == ["a", "b"] and table.columns["b"].tolist() == ["two\nlines", "x"]
    assert table.lines.tolist() == [2, 3]


def test_malformed_rows_are_skipped_and_reported(tmp_path):
    rows = "".join(f"{i},x\n" for i in range(20))
    file = read_table(write(tmp_path / "t.csv", f"a,b\n{rows}1,2,3\n21,y\n"))
    assert len(file.table) == file.num_rows == 21
    assert "line 22 (3 fields)" in file.skipped_sentence()
    parts = list(read_chunks(tmp_path / "t.csv", 5))
    assert any("line 22" in (part.skipped_sentence() or "") for part in parts)
    assert np.concatenate([part.table.lines for part in parts]).tolist() == [*range(2, 22), 23]


def test_a_quotation_mark_that_is_never_closed_does_not_swallow_rows(tmp_path):
    rows = "".join(f"{i},x\n" for i in range(50))
    with pytest.raises(FileFormatError, match="line 52"):
        read_table(write(tmp_path / "t.csv", f'a,b\n{rows}51,"x\n52,x\n53,x\n'))
    with pytest.raises(FileFormatError, match=r"line 52.*never closed"):  # the row that it swallows has a cell too few
        read_table(write(tmp_path / "t.csv", f'a,b\n{rows}"51,x\n52,x\n53,x\n'))
    table = read_table(write(tmp_path / "t.csv", f'a,b\n{rows}51,a 5" pipe\n52\n53,"two\nlines"\n54,x\n')).table
    assert len(table) == 53


def test_parquet_text_that_is_not_utf_8_is_named(tmp_path):
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32))
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe\xfd")])
    pa.parquet.write_table(pa.table({"a": broken}), tmp_path / "t.parquet")
    with pytest.raises(FileFormatError, match="UTF-8"):
        read_table(tmp_path / "t.parquet")


def test_names_of_files_need_not_be_text(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    assert len(read_table(write(path, GOOD)).table) == 3
    pa.parquet.write_table(pa.table({"a": [1]}), pa.OSFile(os.fsencode(path.with_suffix(".parquet")), "wb"))
    assert len(read_table(path.with_suffix(".parquet")).table) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("1,2\n3,4\n", "names"),
        ("a,a\n3,4\n", "two columns called 'a'"),
        ("a,b\n1\n2\n3,4\n", "2 of 3 rows"),
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
    table = read_table(write(tmp_path / "t.csv.gz", gzip.compress(GOOD.encode()))).table
    assert table.columns["a"].tolist() == ["1", "2", "3"]


def test_a_file_larger_than_memory_is_refused_before_reading_and_can_be_sampled(tmp_path, monkeypatch):
    rows = "".join(f"{i},x\n" for i in range(500))
    path = write(tmp_path / "t.csv", f"a,b\n{rows}")
    monkeypatch.setattr(reading, "free_memory", lambda: 1000)
    with pytest.raises(InvalidInputError, match="--max-rows"):
        read_table(path)
    file = read_table(path, max_rows=50)
    assert len(file.table) == 50 and file.num_rows == 500
    numbers = file.table.columns["a"].astype(float)
    assert (np.diff(numbers) > 0).all() and 150 < numbers.mean() < 350
    assert read_table(path, max_rows=50, seed=1).table.columns["a"].tolist() != file.table.columns["a"].tolist()


def test_parquet(tmp_path):
    polars = pytest.importorskip("polars")
    path = tmp_path / "t.parquet"
    polars.DataFrame({"a": [1, 2, None, 4], "b": ["x", None, "z", "w"]}).write_parquet(path)
    table = read_table(path).table
    np.testing.assert_array_equal(table.columns["a"], [1, 2, np.nan, 4])
    assert table.columns["b"].tolist() == ["x", None, "z", "w"]
    assert [part.table.lines.tolist() for part in read_chunks(path, 3)] == [[1, 2, 3], [4]]
    sample = read_table(path, max_rows=2)
    assert len(sample.table) == 2 and sample.num_rows == 4
    write(path, path.read_bytes()[:50])
    with pytest.raises(FileFormatError, match="Parquet"):
        read_table(path)
