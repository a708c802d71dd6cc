"""What a cell of text means: a missing value, a number, a date."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "nil", "?", "-", "#n/a", "nat"})
"""Text that means that there is no value, in lower case."""
BOOLEANS = frozenset({"true", "false", "yes", "no", "y", "n", "t", "f"})
"""Words for yes and no, in lower case."""
DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")
"""Dates that are recognized, the first that fits all cells; a time of day may follow. 03/04/2020 is March 4."""

UNITS = "$€£¥%"
"""Signs of amounts and shares."""

_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_AMOUNT = re.compile(r"([+-]?)([$€£¥]?)\s?([+-]?)(\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)\s?([$€£¥%]?)")
"""$75,367.47 or -12.3%: a sign, a currency or a percent sign, and commas between thousands."""
_DATE_LIKE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T].*)?")
_MICROSECONDS = np.timedelta64(1, "us")


def as_number(text: str) -> float | None:
    """The number that a text means; None if it is something else.

    A currency and commas between thousands are left out: "$75,367.47" is 75367.47. So is a percent sign: "12.3%" is
    12.3, the number that the file shows.
    """
    if _NUMBER.fullmatch(text):
        return float(text)
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


def show_number(value: float) -> str:
    """Six digits, and all of them before the point: 16740, not 1.674e+04."""
    text = f"{value:.6g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text


def date_format(cells: Iterable[str]) -> str | None:
    """The first format of dates that all of these strings have; None if they are something else."""
    cells = list(cells)
    if not cells or _DATE_LIKE.fullmatch(cells[0]) is None:
        return None
    return next((form for form in DATE_FORMATS if all(parse_date(cell, form) is not None for cell in cells)), None)


def parse_date(text: str, form: str) -> np.datetime64 | None:
    """The time that a text means, in UTC; None if it does not have this format."""
    day, _, rest = text.replace("T", " ", 1).partition(" ")
    rest, offset = _without_zone(rest)
    for time in _TIMES:
        if bool(rest) == bool(time):
            try:
                moment = datetime.strptime(f"{day} {rest}".strip(), form + time)
            except ValueError:
                continue
            return np.datetime64(moment, "us") - offset
    return None


def _without_zone(time: str) -> tuple[str, np.timedelta64]:
    """A time of day, and how far its zone is ahead of UTC."""
    match = re.fullmatch(r"(.*?)\s*(Z|UTC|[+-]\d{2}:?\d{2})", time)
    if match is None:
        return time, 0 * _MICROSECONDS
    zone = match[2].replace(":", "")
    if not zone[1:].isdigit():
        return match[1], 0 * _MICROSECONDS
    sign = -1 if zone[0] == "-" else 1
    return match[1], np.timedelta64(sign * (60 * int(zone[1:3]) + int(zone[3:5])), "m").astype("timedelta64[us]")


def days(moments: NDArray[Any]) -> NDArray[np.float64]:
    """Days since 1970, with fractions; NaN where there is no date."""
    whole = moments.astype("datetime64[us]")
    numbers = whole.astype(np.int64) / 86_400e6
    return np.where(np.isnat(whole), np.nan, numbers)
