"""Figures of the results: reliability, entropy, rotation, ROC, referral, and the toy tasks' predictions.

A figure is made for each curve that the results of a task hold, of the first seed of every method. Lines become charts
whose colours follow the page; predictions over a plane or a line are drawn like the demo's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fsvi.errors import FileFormatError
from fsvi.experiments.report.charts import Axis, Chart, Line, Mark, line_style
from fsvi.experiments.report.names import dataset_name, full_name
from fsvi.experiments.report.toy_figures import FigureSet, Picture, draw_set
from fsvi.experiments.results import Result
from fsvi.experiments.tasks.toy import Band, Curve, Surface

Curves = Mapping[str, Mapping[str, Any]]
"""a curve of every method, by its label"""

_DPI = 100
_NHS = Mark(0.2, 0.85, "NHS")
"""the least that the British health service asks of a screening: sensitivity 85%, specificity 80%"""


@dataclass(frozen=True)
class ChartFigure:
    """Charts side by side, or below each other where the page is narrow.

    Attributes:
        title: What it shows.
        caption: How to read it.
        charts: The charts.
        legend: What each style of line means, where the charts' titles do not say.
    """

    title: str
    caption: str
    charts: Sequence[Chart]
    legend: Mapping[str, str]


@dataclass(frozen=True)
class PictureFigure:
    """A figure made of pixels."""

    title: str
    caption: str
    pictures: FigureSet


Figure = ChartFigure | PictureFigure


def build_figures(results: Sequence[Result]) -> list[Figure]:
    """Every figure that the results of one task and profile have curves for."""
    makers: dict[str, Callable[[Curves], Figure]] = {**_chart_makers(), "picture": picture_figure}
    found = {name: _first_seeds(results, name) for name in makers}
    return [make(found[name]) for name, make in makers.items() if found[name]]


def check_curves(curves: Mapping[str, Any]) -> None:
    """Refuse curves that no figure can be drawn from, before those of other results depend on them."""
    checks: dict[str, Callable[[Curves], None]] = {"picture": _check_picture}
    checks |= {name: partial(_check_charts, make) for name, make in _chart_makers().items()}
    for name in checks.keys() & curves.keys():
        try:
            checks[name]({"method": curves[name]})
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise FileFormatError(f"its curve {name!r} cannot be drawn") from error


def _check_charts(make: Callable[[Curves], ChartFigure], curves: Curves) -> None:
    figure = make(curves)
    if not figure.charts:
        raise ValueError("there is nothing to draw")
    for chart in figure.charts:
        for line in chart.lines:
            chart.area(line)


def _check_picture(curves: Curves) -> None:
    picture = _picture(curves["method"])
    parts: list[Surface | Curve | Band] = [picture]
    if isinstance(picture, Curve):
        parts += [picture.zoomed, picture.wide]
    if not all(_fits(part) for part in parts):
        raise ValueError("its parts do not fit together")


def _fits(part: Surface | Curve | Band) -> bool:
    """Whether everything is a finite number and as long as the rest."""
    arrays = {name: value for name, value in vars(part).items() if isinstance(value, np.ndarray)}
    n = len(part.x)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(arrays, (n,))
    if isinstance(part, Surface):
        g = len(part.axis)
        shapes |= {"x": (n, 2), "axis": (g,), "mean": (g, g), "variance": (g, g)}
    finite = all(bool(np.isfinite(array).all()) and array.size for array in arrays.values())
    return finite and all(array.shape == shapes[name] for name, array in arrays.items())


def _chart_makers() -> dict[str, Callable[[Curves], ChartFigure]]:
    return {
        "reliability": reliability_figure,
        "entropy": entropy_figure,
        "rotation": rotation_figure,
        "corruption": corruption_figure,
        "roc": roc_figure,
        "referral": referral_figure,
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


def _percent(value: float) -> str:
    return f"{100 * value:g}%"


def _numbers(values: Sequence[float | None]) -> list[float]:
    """The values, with NaN for what a result's file has no number for."""
    return [math.nan if value is None else value for value in values]


def _styles(labels: Sequence[str]) -> dict[str, str]:
    return {label: line_style(i) for i, label in enumerate(labels)}


def _legend(styles: Mapping[str, str]) -> dict[str, str]:
    return {full_name(label): style for label, style in styles.items()}


def reliability_figure(curves: Curves) -> ChartFigure:
    """Accuracy against confidence: a small chart for each method, in which the others are grey."""

    def line(label: str, style: str) -> Line:
        return Line(_numbers(curves[label]["confidence"]), _numbers(curves[label]["accuracy"]), style)

    charts = []
    x, y = (Axis(name, show=_percent) for name in ("confidence", "accuracy"))
    for label in curves:
        lines = [*(line(other, "others") for other in curves if other != label), line(label, "ink0 dash0")]
        charts.append(Chart(full_name(label), x, y, lines, diagonal=True, small=True))
    caption = (
        "Of the inputs about which a method is 80% confident, 80% should be right: on the dashed diagonal. "
        "Below it, a method is too sure of itself. The grey lines are the other methods."
    )
    return ChartFigure("Reliability", caption, charts, {})


def entropy_figure(curves: Curves) -> ChartFigure:
    """Histograms of predictive entropy on test images and on those of other datasets, a small chart for each method."""
    sets = list(dict.fromkeys(name for curve in curves.values() for name in curve))
    top = max(max(shares) for curve in curves.values() for shares in curve.values())
    ticks = [share for share in (0.0, 0.01, 0.1, 0.3, 0.6, 1.0) if share <= top]
    y = Axis("share of images", 0.0, max(top, 0.01), ticks, _percent, math.sqrt)
    x = Axis("entropy / log C")
    styles = _styles(sets)
    charts = [
        Chart(full_name(label), x, y, [_steps(shares, styles[name]) for name, shares in curve.items()], small=True)
        for label, curve in curves.items()
    ]
    caption = (
        "How undecided the predictions are: 0 is certainty, 1 is every class alike. Test images should lie left, "
        "images from elsewhere right. Heights are on a square-root scale, so that small shares can be seen."
    )
    return ChartFigure("Predictive entropy", caption, charts, {dataset_name(name): styles[name] for name in sets})


def _steps(shares: Sequence[float], style: str) -> Line:
    edges = np.linspace(0.0, 1.0, len(shares) + 1)
    return Line(np.repeat(edges, 2)[1:-1].tolist(), np.repeat(shares, 2).tolist(), style, filled=True)


def rotation_figure(curves: Curves) -> ChartFigure:
    """Brier score, entropy and accuracy against the angle by which test images were turned."""
    angles = Axis("rotation", 0.0, 180.0, (0, 45, 90, 135, 180), "{:g}°".format)
    caption = (
        "Digits are turned away from what was learned. A good method sees that it knows less and less: its entropy "
        "rises, and its Brier score, for which lower is better, stays low."
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
        lines = [Line(curve[along], _numbers(curve[key]), styles[label]) for label, curve in curves.items()][::-1]
        values = [value for line in lines for value in line.y]
        y = Axis(measure, show=_percent) if key == "accuracy" else Axis.around(measure, values)
        charts.append(Chart(measure, x, y, lines))
    return ChartFigure(title, caption, charts, _legend(styles))


def roc_figure(curves: Curves) -> ChartFigure:
    """Sensitivity against the rate of false alarms, a chart for each test set."""
    caption = (
        "Sick patients found against healthy ones alarmed. The mark is what the British health service asks of a "
        "screening at least: sensitivity 85%, specificity 80%."
    )
    axes = Axis("1 − specificity", show=_percent), Axis("sensitivity", show=_percent)
    styles = _styles(list(curves))
    charts = [
        Chart(title, *axes, _lines(curves, name, ("fpr", "tpr"), styles), (_NHS,), diagonal=True)
        for name, title in _domains(curves).items()
    ]
    return ChartFigure("ROC", caption, charts, _legend(styles))


def referral_figure(curves: Curves) -> ChartFigure:
    """Accuracy and AUC of the images that are kept against the share of those referred, for each test set."""
    styles = _styles(list(curves))
    x = Axis("share referred", show=_percent)
    charts = []
    for name, title in _domains(curves).items():
        for key, measure in (("accuracy", "accuracy"), ("auroc", "AUC")):
            lines = _lines(curves, name, ("rate", key), styles)
            charts.append(Chart(f"{title}: {measure}", x, _upper_part(measure, lines), lines))
    caption = (
        "The most uncertain images are referred to an expert; the rest is judged by the model. The curve rises where a "
        "method is uncertain about what it gets wrong."
    )
    return ChartFigure("Referral", caption, [chart for chart in charts if chart.lines], _legend(styles))


def _domains(curves: Curves) -> dict[str, str]:
    return {name: dataset_name(name).capitalize() for curve in curves.values() for name in curve}


def _lines(curves: Curves, domain: str, keys: tuple[str, str], styles: Mapping[str, str]) -> list[Line]:
    """A line for each method that has both keys; the first method's on top."""
    found = [(curve[domain], styles[label]) for label, curve in curves.items() if domain in curve]
    horizontal, vertical = keys
    lines = [Line(_numbers(c[horizontal]), _numbers(c[vertical]), style) for c, style in found if c.get(vertical)]
    return lines[::-1]


def _upper_part(label: str, lines: Sequence[Line]) -> Axis:
    """From a round percentage below all values to 100%."""
    values = [value for line in lines for value in line.y if math.isfinite(value)]
    low = min(math.floor(10 * min(values, default=0.0)) / 10, 0.9)
    return Axis(label, low, 1.0, np.linspace(low, 1.0, 5).round(3).tolist(), _percent)


# Predictions of the toy tasks ---------------------------------------------------------------------------------------


_SURFACE = (
    "Left: the probability of the orange class; no colour means undecided. Right: how much that probability varies "
    "from one plausible function to another. It should be pale on the data and dark elsewhere."
)
_CURVE = (
    "The line is the mean; the bands are one, two and three standard deviations of the function; between the dashed "
    "lines lie about 95% of new observations. The band should hug the data and open where there are none."
)


def picture_figure(curves: Curves) -> PictureFigure:
    """Predictions over the plane or along a line, a row for each method."""
    pictures = {full_name(label): _picture(curve) for label, curve in curves.items()}
    surface = isinstance(next(iter(pictures.values())), Surface)
    return PictureFigure("Predictions", _SURFACE if surface else _CURVE, draw_set(pictures, _DPI))


def _picture(curve: Mapping[str, Any]) -> Picture:
    """What a recipe drew, back from the lists of a result."""
    parts = {name: value for name, value in curve.items() if name != "kind"}
    if curve["kind"] == "surface":
        return Surface(**_arrays(parts))
    zoomed, wide = (Band(**_arrays(parts.pop(name))) for name in ("zoomed", "wide"))
    return Curve(**_arrays(parts), zoomed=zoomed, wide=wide)


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value, dtype=np.float32) for name, value in values.items()}
