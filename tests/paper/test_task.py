"""A task knows the schedule that a method needs: SWAG collects at a constant rate, short trainings warm up and fall."""

import pytest

from fsvi.training.rates import cosine
from paper.experiment import Order
from paper.task import AveragingSchedule, TriangularSchedule
from paper.tasks.registry import TASKS
from pictures import pretend


@pytest.mark.parametrize("start", [0.2, 0.5, 0.75])
def test_the_rate_falls_before_collection_and_is_constant_during_it(start):
    schedule = AveragingSchedule(start, final=0.3)
    assert schedule(0.0) == schedule(0.5 * start) == 1.0
    assert schedule(0.7 * start) == pytest.approx(0.65)
    assert [schedule(done) for done in (0.9 * start, start, 0.9, 1.0)] == pytest.approx([0.3] * 4)
    assert AveragingSchedule(0.0, final=0.3)(0.0) == 0.3


def test_a_triangle_rises_and_falls_linearly():
    expected = {0.0: 0.2, 0.115: 0.6, 0.23: 1.0, 0.615: 0.505, 1.0: 0.01}
    assert {done: TriangularSchedule()(done) for done in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("task", "method", "rates"),
    [
        ("two-moons", "swag", [0.5, 0.5, 0.5]),
        ("cifar10", "ensemble:swag", [0.5, 0.5, 0.5]),
        ("two-moons", "map", [cosine()(done) for done in (0.5, 0.75, 1.0)]),
    ],
)
def test_swag_collects_at_a_constant_rate(monkeypatch, task, method, rates):
    pretend(monkeypatch)
    schedule = TASKS[task].experiment(Order(task, method, "smoke")).fit_settings.get("schedule", cosine())
    assert [schedule(done) for done in (0.5, 0.75, 1.0)] == pytest.approx(rates)


def test_the_order_decides():
    experiment = TASKS["two-moons"].experiment(Order("two-moons", "swag", settings={"start": 0.8}))
    assert experiment.fit_settings["schedule"] == AveragingSchedule(0.8)
    experiment = TASKS["two-moons"].experiment(Order("two-moons", "swag", fit_settings={"schedule": None}))
    assert experiment.fit_settings["schedule"] is None
