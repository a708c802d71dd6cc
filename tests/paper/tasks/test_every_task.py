"""What holds for every task: only its evaluation loads test data, and fills the tables and figures of the task."""

import json

import pytest

from fsvi.errors import DataNotFoundError
from fsvi.methods.registry import setting_names
from made_results import make_result
from paper.experiment import Order
from paper.report.figures import build_figures
from paper.runs import checked, run
from paper.tasks.registry import TASKS
from pictures import pretend


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("fashion-mnist", "fsvi"),
        ("fashion-mnist", "ensemble:map"),
        ("cifar10", "fsvi"),
        ("rotated-mnist", "mc-dropout"),
        ("retina", "map"),
        ("reviews", "fsvi"),
        ("split-mnist", "map"),
        ("uci-yacht", "fsvi"),
        ("two-moons", "map"),
        ("subspace", "mfvi"),
    ],
)
def test_training_sees_no_test_data_and_the_evaluation_fills_tables_and_figures(monkeypatch, task, method):
    asked = pretend(monkeypatch)
    order = checked(Order(task, method, "smoke"))
    assert order.context == (TASKS[task].context if "context" in setting_names(method) else None)
    experiment = TASKS[task].experiment(order)
    trained = experiment.build(0)
    experiment.train(trained, 0, progress=False)
    assert all(split == "train" for _, split in asked)
    asked.clear()
    outcome = experiment.evaluate(trained)
    assert set(experiment.tests) == {name for name, split in asked if split == "test"}
    columns = [column for layout in TASKS[task].section.tables for column in layout.columns if column.task == task]
    assert columns and [column.name for column in columns if column.value(outcome) is None] == []
    figures = build_figures([make_result(task=task, curves=json.loads(json.dumps(outcome.curves)))])
    assert len(figures) == len(outcome.curves)


@pytest.mark.data
@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if "smoke" in task.profiles])
def test_a_run_on_published_data(task, tmp_path):
    method = "s-fsvi" if "coreset" in TASKS[task].contexts else "fsvi"
    try:
        result = run(Order(task, method, "smoke"), tmp_path, lambda _: None, progress=False)
    except DataNotFoundError as error:
        pytest.skip(str(error))
    assert result.metrics and all(each["sha256"] for each in result.data)
