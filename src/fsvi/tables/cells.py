"""What a cell of text means: a missing value, a number, a date."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "nil", "?", "-", "#n/a", "nat"})
"""Text that means that there is no value, in lower case."""
DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")
"""Dates that are recognized, the first that fits all cells; a time of day may follow. 03/04/2020 is March 4."""
UNITS = "$€£¥%"
"""Signs of amounts and shares."""

_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %H:%M%z", " %H:%M:%S%z", " %H:%M:%S.%f%z")
_AMOUNT = re.compile(r"([+-]?)([$€£¥]?)\s?([+-]?)(\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)\s?([$€£¥%]?)")
"""$75,367.47 or -12.3%: a sign, a currency or a percent sign, and commas between thousands."""
_DATE_LIKE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")


def as_number(text: str) -> float | None:
    """The number that a text means; None if it is something else.

    A currency and commas between thousands are left out: "$75,367.47" is 75367.47. So is a percent sign: "12.3%" is
    12.3, the number that the file shows.
    """
    try:
        return float(text)
    except ValueError:
        amount = _AMOUNT.fullmatch(text)
    if amount is None or (amount[1] and amount[3]) or (amount[2] and amount[5]):
        return None
    return float(amount[1] + amount[3] + amount[4].replace(",", ""))


def is_number(text: str) -> bool:
    """Whether this is a number; see `as_number`."""
    return as_number(text) is not None


def all_numbers(cells: Iterable[Any]) -> bool:
    """Whether all of these strings are numbers, with one unit if there are any."""
    units: set[str] = set()
    for cell in cells:
        if not is_number(cell):
            return False
        units.update(mark for mark in UNITS if mark in cell)
    return len(units) < 2


def date_format(cells: Iterable[str]) -> str | None:
    """The first format of dates that all of these strings have; None if they are something else."""
    cells = list(cells)
    if not cells or _DATE_LIKE.fullmatch(cells[0]) is None:
        return None
    return next((form for form in DATE_FORMATS if all(parse_date(cell, form) is not None for cell in cells)), None)


@lru_cache(2**16)  # a column is read several times
def parse_date(text: str, form: str) -> np.datetime64 | None:
    """The time that a text means, in UTC; None if it does not have this format."""
    for time in _TIMES:
        try:
            moment = datetime.strptime(text.replace("T", " ", 1), form + time)
        except ValueError:
            continue
        if moment.tzinfo is not None:
            moment = moment.astimezone(timezone.utc).replace(tzinfo=None)
        return np.datetime64(moment, "us")
    return None


def days(moments: NDArray[Any]) -> NDArray[np.float64]:
    """Days since 1970, with fractions; NaN where there is no date."""
    whole = moments.astype("datetime64[us]")
    numbers = whole.astype(np.int64) / 86_400e6
    return np.where(np.isnat(whole), np.nan, numbers)
