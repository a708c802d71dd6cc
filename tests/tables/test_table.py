import numpy as np
import pytest

from fsvi.errors import InvalidInputError
from fsvi.tables.table import as_table, is_mixed


def test_arrays_of_numbers_are_not_mixed():
    assert not is_mixed(np.zeros((2, 2))) and not is_mixed([[1, 2]])
    assert not is_mixed(np.array([[1, "2"]], dtype=object))
    assert is_mixed(np.array([[1, "red"]], dtype=object))


def test_pandas_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "n": [1, 2],
            "c": pandas.Categorical(["red", None]),
            "b": [True, False],
            "d": pandas.to_datetime(["2024-01-01", None]),
            "z": pandas.to_datetime(["2024-01-01 02:00", "2024-01-02 00:00"]).tz_localize("Europe/Rome"),
            "i": pandas.array([1, None], dtype="Int64"),
            "k": pandas.Categorical([4, 3]),
            "m": [1, "red"],
        }
    )
    table = as_table(frame)
    assert is_mixed(frame) and not is_mixed(frame[["n", "i"]])
    assert table.columns["c"].tolist() == ["red", None] and table.columns["b"].tolist() == ["true", "false"]
    assert np.isnat(table.columns["d"]).tolist() == [False, True]
    assert table.columns["z"][0] == np.datetime64("2024-01-01T01:00")
    np.testing.assert_array_equal(table.columns["i"], [1, np.nan])
    assert table.columns["k"].tolist() == ["4", "3"] and table.columns["m"].tolist() == ["1", "red"]


@pytest.mark.parametrize("values", [[[1], [2]], [{"a": 1}, {"a": 2}], np.array([1, 2], "timedelta64[s]")])
def test_other_things_than_numbers_dates_and_text_are_refused(values):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidInputError, match="column 'a' has the type"):
        as_table(pandas.DataFrame({"a": pandas.Series(values)}))
