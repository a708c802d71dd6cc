"""The report needs no other file, shows every number, and is well-formed."""

import base64
from typing import Any

import pytest

from fsvi.experiments.report.demo_report import METRICS, render_report
from fsvi.experiments.report.toy_figures import FigureSet
from pages import Page

CLASSIFICATION = {
    "accuracy": 0.9653,
    "nll": 0.1214,
    "far_entropy": 0.997,
    "far_entropy_min": 0.91,
    "near_entropy": 0.28,
}
REGRESSION = {
    "rmse": 0.33,
    "log_likelihood": -0.3125,
    "noise": 0.338,
    "data_std": 0.073,
    "gap_std_ratio": 30.02,
    "left_std_ratio": 25.4,
    "right_std_ratio": 24.8,
}
TASKS = {"two-moons": CLASSIFICATION, "snelson": REGRESSION, "oat1d": REGRESSION, "subspace": REGRESSION}


def summary(methods: tuple[str, ...] = ("FSVI",), quick: bool = False) -> dict[str, Any]:
    def result(metrics: dict[str, float]) -> dict[str, Any]:
        return {"metrics": metrics, "seconds": 12.3, "settings": {"fit": {"epochs": 4321}}}

    return {
        "seed": 7,
        "quick": quick,
        "seconds": 61.2,
        "versions": {"fsvi": "0.1.0", "python": "3.12.1", "torch": "2.9.9"},
        "machine": {"system": "Linux", "processor": "x86_64", "cores": 2},
        "tasks": {task: {method: result(metrics) for method in methods} for task, metrics in TASKS.items()},
    }


def figures() -> dict[str, FigureSet]:
    return {task: FigureSet(*(f"{task} {i}".encode() for i in range(4))) for task in TASKS}


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_report(summary(), figures()))


def test_everything_is_inside_the_file(page):
    pngs = [base64.b64decode(source.removeprefix("data:image/png;base64,"), validate=True) for source in page.fetched]
    assert sorted(pngs) == sorted(f"{task} {i}".encode() for task in TASKS for i in range(4))


def test_tags_are_closed(page):
    assert page.open == []


@pytest.mark.parametrize("shown", ["0.965", "0.121", "−0.312", "30.0 ×", "12 s", "--seed 7", "4321", "torch 2.9.9"])
def test_numbers_and_settings_are_shown(page, shown):
    assert shown in page.text


def test_every_metric_is_explained(page):
    for name in {**CLASSIFICATION, **REGRESSION}:
        assert METRICS[name].meaning in page.text


def test_methods_stand_side_by_side():
    methods = ("FSVI", "MFVI", "<ensemble>")
    html = render_report(summary(methods), figures())
    assert "<ensemble>" not in html
    text = Page(html).text
    assert all(text.count(method) >= len(TASKS) for method in methods)
    assert text.count("0.965") == 3


def test_a_quick_run_says_so():
    assert "A quick run" in render_report(summary(quick=True), figures())
    assert "A quick run" not in render_report(summary(), figures())
