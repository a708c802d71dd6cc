import numpy as np
import polars
import pyarrow as pa
import pytest

from fsvi.scoring.writing import write_parts

FIRST = {"key": pa.array(["a", "b,c"]), "label": np.array(["no", "yes"]), "mean": np.array([1 / 3, 2.0])}
SECOND = {"key": pa.array(["d"]), "label": np.array(["perhaps"]), "mean": np.array([4.0])}


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_parts_follow_each_other(tmp_path, name):
    path = tmp_path / "sub" / name
    write_parts(path, [FIRST, SECOND])
    found = (polars.read_parquet if name.endswith("parquet") else polars.read_csv)(path)
    assert found["key"].to_list() == ["a", "b,c", "d"] and found["label"].to_list() == ["no", "yes", "perhaps"]
    assert found["mean"].to_list() == [1 / 3, 2, 4]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("-cmd", "'-cmd"), ("-1.5", "-1.5"), ("+3", "+3"), ("a=b", "a=b")],
)
def test_text_that_a_spreadsheet_would_run_has_an_apostrophe_in_csv_only(tmp_path, cell, written):
    rows = [{"label": np.array([cell])}]
    write_parts(tmp_path / "a.csv", rows)
    write_parts(tmp_path / "a.parquet", rows)
    assert (tmp_path / "a.csv").read_text() == f'"label"\n"{written}"\n'
    assert polars.read_parquet(tmp_path / "a.parquet")["label"].to_list() == [cell]
