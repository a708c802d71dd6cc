"""Arrays and tables of inputs, and tables of predictions: what is written is what is read."""

import json

import numpy as np
import pytest

from fsvi.cli.files import as_csv, as_json, as_whole, check_table, read_examples, read_inputs, write_table
from fsvi.errors import FileFormatError, InvalidInputError

X = np.array([[0.5, 1.0], [2.0, -3.25], [1e-3, 4.0]])


def write_csv(path, x):
    path.write_text("a;b\n" + "".join(f"{a};{b}\n" for a, b in x))


WRITERS = {
    ".npy": np.save,
    ".npz": lambda path, x: np.savez(path, x=x, other=np.zeros(1)),
    ".csv": write_csv,
    ".parquet": lambda path, x: write_table(path, {"a": x[:, 0], "b": x[:, 1]}, {}),
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_inputs_are_read_from_every_kind_of_file(tmp_path, suffix):
    path = tmp_path / f"inputs{suffix}"
    WRITERS[suffix](path, X)
    assert np.array_equal(read_inputs(path), X)


def test_an_unknown_ending_is_refused_with_those_that_are_read(tmp_path):
    with pytest.raises(InvalidInputError, match="parquet"):
        read_inputs(tmp_path / "inputs.xls")


@pytest.mark.parametrize("dtype", [">f8", "<f4", np.longdouble, bool])
def test_numbers_are_in_this_machines_byte_order(tmp_path, dtype):
    np.save(tmp_path / "x.npy", X.astype(dtype))
    read = read_inputs(tmp_path / "x.npy")
    assert read.dtype.isnative and read.dtype.itemsize <= 8
    assert np.array_equal(read, X.astype(dtype).astype(read.dtype))


def test_examples_have_whole_labels(tmp_path):
    np.savez(tmp_path / "examples.npz", x=X, y=np.array([0.0, 1.0, 1.0]))
    x, y = read_examples(tmp_path / "examples.npz")
    assert np.array_equal(x, X) and y.dtype == np.int64 and y.tolist() == [0, 1, 1]


@pytest.mark.parametrize("values", [[0.5], [2.0**53], [np.inf], [np.nan]])
def test_numbers_that_are_not_whole_stay(values):
    assert as_whole(np.array(values)).dtype == np.float64


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_that_was_written_can_be_read(tmp_path, suffix):
    path = tmp_path / "folder" / f"table{suffix}"
    write_table(path, {"a": X[:, 0], "b": X[:, 1]}, {})
    assert np.allclose(read_inputs(path), X)


def test_json_has_the_document_around_the_rows(tmp_path):
    text = as_json({"label": np.array([1, 0]), "decision": np.array(["keep", "refer"])}, {"inputs": 2})
    rows = [{"label": 1, "decision": "keep"}, {"label": 0, "decision": "refer"}]
    assert json.loads(text) == {"inputs": 2, "predictions": rows}


def test_csv_has_six_digits_and_quotes_where_needed():
    text = as_csv({"mean": np.array([1 / 3, 2.0]), "name": np.array(["a,b", "c"])})
    assert text == 'mean,name\n0.333333,"a,b"\n2,c\n'


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    with pytest.raises(InvalidInputError, match="ending"):
        check_table(tmp_path / "table.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="file"):
        check_table(tmp_path / "file" / "table.csv")


def test_an_archive_without_the_array_says_what_it_has(tmp_path):
    np.savez(tmp_path / "inputs.npz", inputs=X)
    with pytest.raises(FileFormatError, match="inputs"):
        read_inputs(tmp_path / "inputs.npz")
