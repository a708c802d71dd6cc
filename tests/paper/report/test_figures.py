"""Figures are made of the curves that results hold."""

import math

import numpy as np
import pytest

from made_results import make_result
from paper.report import figures as result_figures
from paper.report.figures import ChartFigure, PictureFigure, build_figures
from paper.tasks.toy_predictions import Band, Curve, Surface, as_lists


def drawn(figure: ChartFigure, chart: int = 0, line: int = -1) -> tuple[list[float], list[float]]:
    found = figure.charts[chart].lines[line]
    return list(found.x), list(found.y)


def figure_of(name: str, **curves: dict) -> ChartFigure:
    (figure,) = build_figures([make_result(method, curves={name: curve}) for method, curve in curves.items()])
    return figure


def test_reliability_shows_each_method_before_the_others():
    curve = {"confidence": [None, 0.5, 1.0], "accuracy": [None, 0.25, 0.75], "count": [0, 2, 2], "edges": [0, 0.4, 1]}
    figure = figure_of("reliability", map=curve, fsvi=curve, mfvi=curve)
    assert [chart.title for chart in figure.charts] == ["FSVI", "MAP", "MFVI"]
    assert [line.style.color for line in figure.charts[0].lines] == ["others", "others", "ink0"]
    x, y = drawn(figure)
    assert math.isnan(x[0]) and x[1:] == [0.5, 1.0] and y[1:] == [0.25, 0.75]
    assert figure.charts[0].diagonal


def test_histograms_are_steps_of_equal_width():
    figure = figure_of("entropy", map={"test": [0.75, 0.25], "mnist": [0.5, 0.5]})
    assert drawn(figure, line=0) == ([0.0, 0.5, 0.5, 1.0], [0.75, 0.75, 0.25, 0.25])
    assert list(figure.legend) == ["test set", "MNIST"]
    assert figure.charts[0].y.high == 0.75 and figure.charts[0].lines[0].filled


def test_rotation_has_a_chart_for_each_measure():
    curve = {"degrees": [0, 90, 180], "brier": [0.1, 0.8, 1.5], "entropy": [0.1, 0.2, 0.3], "accuracy": [1.0, 0.5, 0.1]}
    figure = figure_of("rotation", map=curve, fsvi={**curve, "brier": [0.1, 0.2, 0.3]})
    assert [chart.title for chart in figure.charts] == ["Brier score", "Predictive entropy", "Accuracy"]
    assert drawn(figure) == ([0, 90, 180], [0.1, 0.2, 0.3]), "FSVI is drawn last, on top"
    assert figure.charts[0].y.high is None, "matplotlib ends the axis above all values"
    assert list(figure.legend) == ["FSVI", "MAP"]


def test_corruption_is_drawn_by_severity():
    curve = {"severity": [1, 2, 3], "brier": [0.1, 0.2, 0.3], "entropy": [0.1, 0.2, 0.3], "accuracy": [1.0, 0.5, 0.1]}
    assert drawn(figure_of("corruption", map=curve))[0] == [1, 2, 3]


def test_roc_marks_what_the_health_service_asks():
    curve = {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}
    figure = figure_of("roc", map={"in_domain": curve, "shifted": curve})
    assert [chart.title for chart in figure.charts] == ["In domain", "Shifted"]
    (mark,) = figure.charts[0].marks
    assert (1 - mark.x, mark.y) == (0.8, 0.85), "specificity and sensitivity"


def test_referral_shows_accuracy_and_auc():
    curve = {"rate": [0.0, 0.5], "accuracy": [0.83, 0.9], "auroc": [0.8, None]}
    figure = figure_of("referral", map={"in_domain": curve}, mfvi={"in_domain": {**curve, "auroc": None}})
    assert [chart.title for chart in figure.charts] == ["In domain: accuracy", "In domain: AUC"]
    assert [len(chart.lines) for chart in figure.charts] == [2, 1]
    assert figure.charts[0].y.low == 0.8


def test_the_first_seed_is_drawn():
    results = [make_result(seed=s, curves={"entropy": {"test": [float(s), 0.0]}}) for s in (2, 1)]
    (figure,) = build_figures(results)
    assert drawn(figure)[1][0] == 1.0


def test_results_without_curves_have_no_figures():
    assert build_figures([make_result()]) == []


def pictures() -> list[Surface | Curve]:
    line = np.linspace(-1, 1, 5, dtype=np.float32)
    band = Band(line, line, abs(line), abs(line) + 1)
    grid = np.outer(line, line)
    return [Surface(np.ones((2, 2)), np.array([0, 1]), line, grid, grid), Curve(line, line, band, band)]


@pytest.mark.parametrize("picture", pictures(), ids=["surface", "curve"])
def test_pictures_come_back_as_the_recipe_drew_them(picture, monkeypatch):
    seen = []
    monkeypatch.setattr(result_figures, "draw_set", lambda pictures, dpi: seen.append(pictures))
    (figure,) = build_figures([make_result("ensemble:map", curves={"picture": as_lists(picture)})])
    assert isinstance(figure, PictureFigure)
    (found,) = (each["Deep ensemble"] for each in seen)
    assert type(found) is type(picture)
    assert as_lists(found) == as_lists(picture)
