"""A task knows the training that a method needs."""

import pytest

from fsvi.training.rates import cosine
from paper.experiment import Order
from paper.task import AveragingSchedule
from paper.tasks.registry import TASKS
from pictures import pretend


def rates(task, method, **order):
    settings = TASKS[task].experiment(Order(task, method, "smoke", **order)).fit_settings
    schedule = settings.get("schedule", cosine())
    return [schedule(done) for done in (0.5, 0.75, 1.0)]


@pytest.mark.parametrize("task", ["two-moons", "cifar10"])
@pytest.mark.parametrize("method", ["swag", "ensemble:swag"])
def test_swag_collects_at_a_constant_rate(monkeypatch, task, method):
    pretend(monkeypatch)
    assert rates(task, method) == pytest.approx([0.5, 0.5, 0.5])


def test_other_methods_keep_the_default_schedule():
    assert rates("two-moons", "map")[2] == pytest.approx(0.05)


def test_the_order_decides():
    experiment = TASKS["two-moons"].experiment(Order("two-moons", "swag", settings={"start": 0.8}))
    assert experiment.fit_settings["schedule"] == AveragingSchedule(0.8)
    experiment = TASKS["two-moons"].experiment(Order("two-moons", "swag", fit_settings={"schedule": None}))
    assert experiment.fit_settings["schedule"] is None
