import numpy as np
import pytest

from fsvi.tables.cells import date_format, days, is_number, parse_date


@pytest.mark.parametrize("text", ["1", "-2.5", "+.5", "3.", "1e-3", "inf", "$1,234.50", "12.3%"])
def test_numbers(text):
    assert is_number(text)


@pytest.mark.parametrize("text", ["one", "0x10", "1 2", "1e", "."])
def test_not_numbers(text):
    assert not is_number(text)


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["2024-03-31", "2023-12-01"], "%Y-%m-%d"),
        (["2024/03/31"], "%Y/%m/%d"),
        (["31.03.2024", "1.12.2023"], "%d.%m.%Y"),
        (["03/04/2024"], "%m/%d/%Y"),
        (["03/04/2024", "31/12/2024"], "%d/%m/%Y"),
        (["2024-03-31T10:00:00Z", "2024-03-31 10:00"], "%Y-%m-%d"),
        (["2024-03-31", "soon"], None),
        (["1.5", "2.5"], None),
        ([], None),
    ],
)
def test_formats_of_dates(cells, form):
    assert date_format(cells) == form


def test_time_zones_lead_to_utc():
    assert parse_date("2024-03-31T12:30:00+02:00", "%Y-%m-%d") == np.datetime64("2024-03-31T10:30", "us")
    assert parse_date("2024-03-31T12:30:00Z", "%Y-%m-%d") == np.datetime64("2024-03-31T12:30", "us")


def test_days_since_1970():
    moments = np.array(["1970-01-02T12:00", "NaT", "1969-12-31"], dtype="datetime64[us]")
    np.testing.assert_array_equal(days(moments), [1.5, np.nan, -1.0])
