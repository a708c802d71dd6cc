import numpy as np
import pytest

from fsvi.errors import InvalidInputError
from fsvi.serialization import Configurable
from fsvi.tables import Table
from fsvi.tables.columns import MOST_CATEGORIES, CategoryColumn, DateColumn, NumberColumn, detect_kind

ONES = np.ones(4)


def strings(*values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def table(**columns):
    return Table(columns, np.arange(2, len(next(iter(columns.values()))) + 2))


def encode(column, values):
    encoded = column.encode(column.parse(table(**{column.name: values})))
    return list(encoded), np.stack(list(encoded.values()), 1)


def test_numbers_have_the_median_in_gaps_and_say_where():
    column = NumberColumn.learn("age", table(age=strings("1", "2", None, "10")), ONES)
    names, encoded = encode(column, np.array([5.0, np.nan]))
    assert column.middle == 2.0 and names == ["age", "age missing"]
    np.testing.assert_array_equal(encoded, [[5, 0], [2, 1]])


def test_the_median_counts_rows_by_their_weights():
    values = np.array([1.0, 2.0, 3.0])
    weights = np.array([1.0, 1.0, 5.0])
    assert NumberColumn.learn("x", table(x=values), weights).middle == 3.0
    assert NumberColumn.learn("x", table(x=values.repeat(weights.astype(int))), np.ones(7)).middle == 3.0


def test_categories_have_an_output_each():
    column = CategoryColumn.learn("color", table(color=strings("red", "blue", "red", None)), ONES)
    names, encoded = encode(column, strings("blue", None, "red"))
    assert names == ["color=red", "color=blue", "color missing", "color never seen"]
    np.testing.assert_array_equal(encoded, [[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]])


def test_a_category_never_seen_lies_outside_of_the_data():
    column = CategoryColumn.learn("color", table(color=strings("red", "blue", "red", "red")), ONES)
    values = column.parse(table(color=strings("rad", None)))
    np.testing.assert_array_equal(encode(column, strings("rad", None))[1], [[0, 0, 1], [0, 0, 1]])
    missing, unseen = column.surprises(values)
    assert "lacks 1 of 2" in missing and "'rad'" in unseen and "'red'" in unseen


def test_rare_categories_share_an_output():
    values = strings(*[f"c{i}" for i in range(MOST_CATEGORIES + 5)], "c0")
    column = CategoryColumn.learn("c", table(c=values), np.ones(len(values)))
    assert column.levels[0] == "c0" and len(column.rare) == 5
    np.testing.assert_array_equal(encode(column, strings(*column.rare))[1], np.eye(MOST_CATEGORIES + 2)[[-2] * 5])


def test_dates_are_days_and_points_on_circles():
    values = strings("2024-01-01", "2024-07-01", None, "2025-01-01")
    column = DateColumn.learn("day", table(day=values), ONES)
    names, encoded = encode(column, values)
    assert column.cycles == ["year", "week"] and column.has_missing and len(names) == 6
    first = (np.datetime64("2024-01-01") - np.datetime64("1970-01-01")).astype(int)
    assert encoded[0, 0] == first and encoded[2, 5] == 1 and np.isfinite(encoded).all()
    np.testing.assert_allclose((encoded[:, 1:5] ** 2).sum(1), 2)
    typed = np.array(["2024-01-01", "2024-07-01", "NaT", "2025-01-01"], dtype="datetime64[us]")
    np.testing.assert_array_equal(encode(column, typed)[1], encoded)


@pytest.mark.parametrize(
    ("values", "read_numbers", "kind"),
    [
        (strings("1", None, "2.5"), True, "number"),
        (strings("1", None, "2.5"), False, "category"),
        (strings("red", "blue"), True, "category"),
        (strings("yes", "no"), True, "category"),
        (strings("2024-01-01", None), True, "date"),
        (strings(*[f"name {i}" for i in range(50)]), True, "text"),
        (np.array([1.0]), True, "number"),
        (np.array(["2024-01-01"], dtype="datetime64[us]"), True, "date"),
        (strings(None, None), True, "number"),
    ],
)
def test_kinds_are_detected(values, read_numbers, kind):
    assert detect_kind(values, read_numbers) == kind


@pytest.mark.parametrize(
    "column",
    [
        NumberColumn.learn("a", table(a=np.array([1.0, np.nan, 3.0, 4.0])), ONES),
        CategoryColumn.learn("b", table(b=strings("x", None, "y", "x")), ONES),
        DateColumn.learn("c", table(c=strings("2024-01-01", "2024-05-01", None, "2024-02-02")), ONES),
    ],
)
def test_columns_come_back_from_their_configuration(column):
    again = Configurable.from_config(column.config())
    assert vars(again) == vars(column)


def test_more_levels_than_training_makes_are_refused():
    """Only a forged file has them; their one-hot codes would take gigabytes."""
    with pytest.raises(InvalidInputError, match="column 'b' has 30000 levels"):
        CategoryColumn("b", [str(level) for level in range(30_000)], [], has_missing=False)
