"""SWAG collects parameters at a constant learning rate; short trainings warm up and then fall to almost nothing."""

import pytest

from fsvi.methods import SWAG
from paper.task import AveragingSchedule, TriangularSchedule


@pytest.mark.parametrize("start", [0.2, 0.5, 0.75])
def test_the_rate_falls_before_collection_and_is_constant_during_it(start):
    schedule = AveragingSchedule(start, final=0.3)
    assert schedule(0.0) == schedule(0.5 * start) == 1.0
    assert schedule(0.7 * start) == pytest.approx(0.65)
    for done in (0.9 * start, start, 0.9, 1.0):
        assert schedule(done) == pytest.approx(0.3)


def test_collection_from_the_beginning():
    assert AveragingSchedule(0.0, final=0.3)(0.0) == 0.3


def test_the_default_start_is_swags():
    import inspect

    assert AveragingSchedule().start == inspect.signature(SWAG).parameters["start"].default


def test_result_files_can_name_it():
    assert repr(AveragingSchedule()) == "AveragingSchedule(start=0.5, final=0.5)"


def test_a_triangle_rises_and_falls_linearly():
    schedule = TriangularSchedule(first=0.2, peak=0.25, final=0.01)
    expected = {0.0: 0.2, 0.125: 0.6, 0.25: 1.0, 0.625: 0.505, 1.0: 0.01}
    assert {done: schedule(done) for done in expected} == pytest.approx(expected)
    assert repr(schedule) == "TriangularSchedule(first=0.2, peak=0.25, final=0.01)"
