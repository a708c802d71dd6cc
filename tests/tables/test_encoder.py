import numpy as np
import pytest

from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable
from fsvi.tables import Table, TableEncoder


def make(**columns):
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = values
    return Table(arrays, np.arange(2, len(values) + 2))


@pytest.fixture
def table():
    return make(price=["1", "2", "3"], color=["red", None, "blue"], day=["2024-01-01", "2024-01-02", "2024-03-09"])


def test_all_columns_side_by_side(table):
    encoder = TableEncoder.learn(table, {"price": "number"})
    encoded = encoder.transform(table)
    assert encoded.shape == (3, len(encoder.outputs)) and np.isfinite(encoded).all()
    assert encoder.outputs[:4] == ["price", "color=blue", "color=red", "color missing"]


def test_missing_columns_are_named_with_the_nearest(table):
    encoder = TableEncoder.learn(table, {"price": "number"})
    with pytest.raises(InvalidInputError, match=r"'price' \(is it 'prize'\?\)"):
        encoder.check_names(["prize", "color", "day"])
    with pytest.raises(InvalidInputError, match="PRICE in EUR"):
        encoder.check_names(["PRICE in EUR", "color", "day"])


def test_surprises_are_told(table):
    encoder = TableEncoder.learn(table, {"price": "number"})
    assert "'rad'" in encoder.examine(make(price=["1"], color=["rad"], day=["2024-01-01"]))[1][0]
    assert encoder.examine(table)[1] == []


def test_an_encoder_comes_back_from_its_configuration(table):
    encoder = TableEncoder.learn(table, {"day": "ignore", "price": "number"})
    again = Configurable.from_config(encoder.config())
    np.testing.assert_array_equal(again.transform(table), encoder.transform(table))
    assert again.left_out == encoder.left_out
