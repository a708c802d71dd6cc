"""Figures of a report: reliability, entropy, rotation, corruption, ROC, referral, forgetting, and toy predictions.

There is a figure for each curve that the results of a task hold, with the first seed of every method. Lines become
charts; predictions over a plane or along a line become pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsvi.errors import FileFormatError
from paper.names import dataset_name, full_name
from paper.records import Result
from paper.report.line_charts import Axis, Line, LineChart, LineStyle, Mark, upper_part
from paper.report.toy_figures import FigureSet, draw_set
from paper.tasks.toy_predictions import Surface, from_lists

Curves = Mapping[str, Mapping[str, Any]]
"""A curve of every method, by its label."""

_DPI = 130
_NHS = Mark(0.2, 0.85, "NHS")
"""What the British health service requires of a screening: sensitivity 85%, specificity 80%."""
_OTHERS = LineStyle("others")


@dataclass(frozen=True)
class ChartFigure:
    """Charts side by side; they wrap on a narrow page.

    Attributes:
        title: The heading.
        caption: How to read it.
        charts: The charts.
        legend: The meaning of each line style, if the titles of the charts do not say it.
    """

    title: str
    caption: str
    charts: Sequence[LineChart]
    legend: Mapping[str, LineStyle]


@dataclass(frozen=True)
class PictureFigure:
    """A figure made of pixels.

    Attributes:
        title: The heading.
        caption: One or two sentences below the figure.
        pictures: The figure for light and dark pages and for narrow screens.
    """

    title: str
    caption: str
    pictures: FigureSet


ReportFigure = ChartFigure | PictureFigure


def build_figures(results: Sequence[Result]) -> list[ReportFigure]:
    """Every figure for which the results of one task and profile hold curves."""
    makers: dict[str, Callable[[Curves], ReportFigure]] = {**_chart_makers(), "picture": picture_figure}
    found = {name: _first_seeds(results, name) for name in makers}
    return [make(found[name]) for name, make in makers.items() if found[name]]


def check_curves(curves: Mapping[str, Any]) -> None:
    """Refuse curves that cannot be drawn, so that they do not spoil the figures of other results."""
    checks: dict[str, Callable[[Curves], Any]] = {**_chart_makers(), "picture": _pictures}
    for name in checks.keys() & curves.keys():
        try:
            made = checks[name]({"method": curves[name]})
            if isinstance(made, ChartFigure) and not made.charts:
                raise ValueError("there is nothing to draw")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise FileFormatError(f"its curve {name!r} cannot be drawn") from error


def _chart_makers() -> dict[str, Callable[[Curves], ChartFigure]]:
    return {
        "reliability": reliability_figure,
        "entropy": entropy_figure,
        "rotation": rotation_figure,
        "corruption": corruption_figure,
        "roc": roc_figure,
        "referral": referral_figure,
        "forgetting": forgetting_figure,
    }


def _first_seeds(results: Sequence[Result], name: str) -> Curves:
    """The curve called `name` of each method's lowest seed; FSVI's first."""
    curves: dict[str, Mapping[str, Any]] = {}
    for result in sorted(
        results, key=lambda r: (r.method != "fsvi", r.method.startswith("ensemble:"), r.label, r.seed)
    ):
        if name in result.curves:
            curves.setdefault(result.label, result.curves[name])
    return curves


# Charts -------------------------------------------------------------------------------------------------------------


def _numbers(values: Sequence[float | None]) -> list[float]:
    """The values, with NaN for null."""
    return [math.nan if value is None else float(value) for value in values]


def _styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    return {label: LineStyle.number(i) for i, label in enumerate(labels)}


def _legend(styles: Mapping[str, LineStyle]) -> dict[str, LineStyle]:
    return {full_name(label): style for label, style in styles.items()}


def reliability_figure(curves: Curves) -> ChartFigure:
    """Accuracy against confidence: a small chart per method, with the other methods in gray."""

    def line(label: str, style: LineStyle) -> Line:
        return Line(_numbers(curves[label]["confidence"]), _numbers(curves[label]["accuracy"]), style)

    charts = []
    x, y = (Axis(name, unit="%") for name in ("confidence", "accuracy"))
    for label in curves:
        lines = [*(line(other, _OTHERS) for other in curves if other != label), line(label, LineStyle.number(0))]
        charts.append(LineChart(full_name(label), x, y, lines, diagonal=True, small=True))
    caption = (
        "If a method is 80% confident, it should be right for 80% of the inputs: then the line is on the dashed "
        "diagonal. Below it, a method is overconfident. The gray lines are the other methods."
    )
    return ChartFigure("Reliability", caption, charts, {})


def entropy_figure(curves: Curves) -> ChartFigure:
    """Histograms of predictive entropy on test images and on those of other datasets, a small chart per method."""
    sets = list(dict.fromkeys(name for curve in curves.values() for name in curve))
    top = max(max(shares) for curve in curves.values() for shares in curve.values())
    ticks = [share for share in (0.0, 0.01, 0.1, 0.3, 0.6, 1.0) if share <= top]
    y = Axis("share of images", 0.0, max(top, 0.01), ticks, "%", square_root=True)
    x = Axis("entropy / log C")
    styles = _styles(sets)
    charts = [
        LineChart(full_name(label), x, y, [_steps(shares, styles[name]) for name, shares in curve.items()], small=True)
        for label, curve in curves.items()
    ]
    caption = (
        "Entropy of the predictions: at 0 a prediction is certain, at 1 all classes are equally likely. Test images "
        "should be on the left, images of other kinds on the right. The vertical scale is a square root, which makes "
        "small shares visible."
    )
    return ChartFigure("Predictive entropy", caption, charts, {dataset_name(name): styles[name] for name in sets})


def _steps(shares: Sequence[float], style: LineStyle) -> Line:
    edges = np.linspace(0.0, 1.0, len(shares) + 1)
    return Line(np.repeat(edges, 2)[1:-1].tolist(), np.repeat(shares, 2).tolist(), style, filled=True)


def rotation_figure(curves: Curves) -> ChartFigure:
    """Brier score, entropy and accuracy against the rotation of the test images."""
    angles = Axis("rotation", 0.0, 180.0, (0, 45, 90, 135, 180), "°")
    caption = (
        "Digits are rotated away from the training data. The entropy of a good method rises, and its Brier score "
        "(lower is better) stays low."
    )
    return _shift_figure("Rotation", caption, curves, "degrees", angles)


def corruption_figure(curves: Curves) -> ChartFigure:
    """Brier score, entropy and accuracy against the severity of corruptions."""
    severities = Axis("severity of corruption", 1.0, 5.0, (1, 2, 3, 4, 5))
    caption = (
        "Means over the kinds of corruption. Lower Brier scores are better; entropy should rise as accuracy falls."
    )
    return _shift_figure("Corruption", caption, curves, "severity", severities)


def _shift_figure(title: str, caption: str, curves: Curves, along: str, x: Axis) -> ChartFigure:
    styles = _styles(list(curves))
    charts = []
    for key, measure in (("brier", "Brier score"), ("entropy", "Predictive entropy"), ("accuracy", "Accuracy")):
        lines = [Line(_numbers(curve[along]), _numbers(curve[key]), styles[label]) for label, curve in curves.items()][
            ::-1
        ]
        y = Axis(measure, unit="%") if key == "accuracy" else Axis(measure, 0.0, None, None)
        charts.append(LineChart(measure, x, y, lines))
    return ChartFigure(title, caption, charts, _legend(styles))


def roc_figure(curves: Curves) -> ChartFigure:
    """Sensitivity against the false positive rate, one chart per test set."""
    caption = (
        "The share of sick patients who are found against the share of healthy patients with a false alarm. The mark "
        "is what the British health service requires of a screening: sensitivity 85%, specificity 80%."
    )
    axes = Axis("1 − specificity", unit="%"), Axis("sensitivity", unit="%")
    styles = _styles(list(curves))
    charts = [
        LineChart(title, *axes, _lines(curves, name, ("fpr", "tpr"), styles), (_NHS,), diagonal=True)
        for name, title in _domains(curves).items()
    ]
    return ChartFigure("ROC", caption, charts, _legend(styles))


def referral_figure(curves: Curves) -> ChartFigure:
    """Accuracy and AUC of the images that are kept against the share of referred images, for each test set."""
    styles = _styles(list(curves))
    x = Axis("share referred", unit="%")
    charts = []
    for name, title in _domains(curves).items():
        for key, measure in (("accuracy", "accuracy"), ("auroc", "AUC")):
            lines = _lines(curves, name, ("rate", key), styles)
            charts.append(LineChart(f"{title}: {measure}", x, upper_part(measure, lines), lines))
    caption = (
        "The most uncertain images are referred to an expert; the model judges the others. The curve rises if a method "
        "is uncertain where it is wrong."
    )
    return ChartFigure("Referral", caption, [chart for chart in charts if chart.lines], _legend(styles))


def forgetting_figure(curves: Curves) -> ChartFigure:
    """Accuracy on all tasks seen so far, and on the first one, against the number of tasks learned."""
    styles = _styles(list(curves))
    last = max(max(curve["task"]) for curve in curves.values())
    x = Axis("tasks learned", 1.0, float(last), tuple(range(1, int(last) + 1)))
    charts = []
    for key, title in (("mean", "All tasks so far"), ("first", "The first task")):
        lines = [Line(_numbers(curve["task"]), _numbers(curve[key]), styles[label]) for label, curve in curves.items()]
        charts.append(LineChart(title, x, upper_part("accuracy", lines), lines[::-1]))
    caption = "Accuracy on test images while tasks are learned one after the other. A method that forgets falls."
    return ChartFigure("Forgetting", caption, charts, _legend(styles))


def _domains(curves: Curves) -> dict[str, str]:
    return {name: dataset_name(name).capitalize() for curve in curves.values() for name in curve}


def _lines(curves: Curves, domain: str, keys: tuple[str, str], styles: Mapping[str, LineStyle]) -> list[Line]:
    """A line for each method that has both keys; the first method is on top."""
    found = [(curve[domain], styles[label]) for label, curve in curves.items() if domain in curve]
    horizontal, vertical = keys
    lines = [Line(_numbers(c[horizontal]), _numbers(c[vertical]), style) for c, style in found if c.get(vertical)]
    return lines[::-1]


# Predictions of the toy tasks ---------------------------------------------------------------------------------------


_SURFACE = (
    "Left: the probability of the orange class (triangles); no color means undecided. Right: how much that probability "
    "varies between plausible functions. It should be small (pale) near the data and large elsewhere."
)
_CURVE = (
    "The line is the mean; the bands are one, two and three standard deviations of the function. About 95% of new "
    "observations lie between the dashed lines. The band should be narrow at the data and wide where there are none."
)


def picture_figure(curves: Curves) -> PictureFigure:
    """Predictions over the plane or along a line, one row per method."""
    pictures = _pictures(curves)
    surface = isinstance(next(iter(pictures.values())), Surface)
    return PictureFigure("Predictions", _SURFACE if surface else _CURVE, draw_set(pictures, _DPI))


def _pictures(curves: Curves) -> dict[str, Any]:
    return {full_name(label): from_lists(curve) for label, curve in curves.items()}
