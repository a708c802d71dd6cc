"""The line about all runs."""

import pytest

from fsvi.parallel import Workers
from paper.runner import progress
from paper.runner.progress import SweepProgress, format_duration


def test_lines_say_what_is_left(monkeypatch):
    clock = iter([0.0, 60.0, 100.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    said = []
    with SweepProgress(6, 2, Workers(2), said.append) as shown:
        shown.advance("first", 1, failed=False)
        shown.advance("second", 2, failed=True)
        shown.advance("third", 1, failed=False)
    assert said == [
        "2 of 6 results exist already.",
        "[3/6] first (2 running, about 3 min left)",
        "[5/6] second (1 running, 2 failed, about 33 s left)",
        "[6/6] third (2 failed)",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59.0, "59 s"), (150, "2 min"), (5400, "1.5 h")])
def test_durations_are_readable(seconds, text):
    assert format_duration(seconds) == text
