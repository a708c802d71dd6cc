"""Line charts, drawn by matplotlib as SVG whose colors follow the light or dark theme of the page."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

COLORS: dict[str, tuple[str, str]] = {
    "text": ("#5b6775", "#9aa6b5"),
    "strong": ("#1f2933", "#e6eaf0"),
    "grid": ("#e1e6ec", "#2a313b"),
    "others": ("#cdd4dc", "#3d4652"),
    "ink0": ("#0072b2", "#56b4e9"),
    "ink1": ("#d55e00", "#f0883e"),
    "ink2": ("#009e73", "#2fbf95"),
    "ink3": ("#c0568f", "#e29cc4"),
    "ink4": ("#b58900", "#e9c46a"),
    "ink5": ("#6a3d9a", "#b79bea"),
    "ink6": ("#8c564b", "#c49a8b"),
    "ink7": ("#5b5b5b", "#a9a9a9"),
}
"""Colors by name, for light and for dark pages. The light ones differ from each other: each stands for its name."""

_DASHES = ("solid", "dashed", "dotted")
_INKS = 8
_LARGE, _SMALL = (3.4, 2.5), (1.9, 1.75)
"""Sizes in inches; an SVG has 72 points per inch."""


@dataclass(frozen=True)
class LineStyle:
    """The look of a line.

    Attributes:
        color: A name in `COLORS`.
        dash: "solid", "dashed" or "dotted".
    """

    color: str
    dash: str = "solid"

    @classmethod
    def number(cls, index: int) -> LineStyle:
        """A style that differs from those of the other first 24 numbers."""
        return cls(f"ink{index % _INKS}", _DASHES[index // _INKS % len(_DASHES)])


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        label: Its name.
        low: Where it begins.
        high: Where it ends; None to end above all values.
        ticks: Labeled values; None to choose them automatically.
        unit: Text after the numbers; "%" also multiplies them by 100.
        square_root: Whether values are spaced by their square roots, which makes small values visible.
        logarithmic: Whether values are spaced by their logarithms, for sizes that double.
    """

    label: str
    low: float = 0.0
    high: float | None = 1.0
    ticks: Sequence[float] | None = (0.0, 0.5, 1.0)
    unit: str = ""
    square_root: bool = False
    logarithmic: bool = False

    def show(self, value: float) -> str:
        """The label of a tick."""
        return f"{100 * value if self.unit == '%' else value:g}{self.unit}"


@dataclass(frozen=True)
class Line:
    """Points joined by a line; NaN leaves a point out.

    Attributes:
        x: Horizontal values.
        y: Vertical values, as many.
        style: Its color and dashes.
        filled: Whether the area below is filled.
        label: Its name in the chart's own legend; without a name it is not there.
    """

    x: Sequence[float]
    y: Sequence[float]
    style: LineStyle
    filled: bool = False
    label: str | None = None

    def __post_init__(self) -> None:
        x, y = (np.asarray(values, dtype=np.float64) for values in (self.x, self.y))
        if x.shape != y.shape or x.ndim != 1 or not x.size:
            raise ValueError("a line needs as many horizontal as vertical values, and at least one")


@dataclass(frozen=True)
class Mark:
    """A point with a name.

    Attributes:
        x: The position.
        y: The value.
        label: The name.
    """

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class LineChart:
    """Lines over two axes.

    Attributes:
        title: The heading above the chart.
        x: The horizontal axis.
        y: The vertical axis.
        lines: The lines, the last one on top.
        marks: Single points.
        diagonal: Whether the line x = y is drawn for comparison.
        small: Whether it is one of many charts side by side.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = field(default=())
    diagonal: bool = False
    small: bool = False

    @property
    def svg(self) -> bytes:
        """The chart as an SVG file."""
        return draw_chart(self)


def draw_chart(chart: LineChart) -> bytes:
    """The chart as an SVG file that switches its colors with the theme of the page."""
    style: Any = _settings()  # the type of its keys differs between versions of matplotlib
    with rc_context(style):
        figure = Figure(figsize=_SMALL if chart.small else _LARGE)
        _draw(figure.subplots(), chart)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _with_themes(buffer.getvalue().decode()).encode()


def _draw(ax: Axes, chart: LineChart) -> None:
    if chart.diagonal:
        ax.plot([0, 1], [0, 1], color=_light("text"), linewidth=0.8, linestyle=(0, (4, 3)))
    for line in chart.lines:
        color = _light(line.style.color)
        ax.plot(*_finite(line), color=color, linestyle=line.style.dash, linewidth=1.4, label=line.label)
        if line.filled:
            ax.fill_between(*_finite(line), color=color, alpha=0.15, linewidth=0)
    for mark in chart.marks:
        ax.plot(mark.x, mark.y, "+", color=_light("strong"), markersize=8)
        ax.annotate(mark.label, (mark.x, mark.y), (6, -10), textcoords="offset points", color=_light("strong"))
    _finish_axis(ax.xaxis, ax.set_xscale, ax.set_xlim, chart.x)
    _finish_axis(ax.yaxis, ax.set_yscale, ax.set_ylim, chart.y)
    ax.set_xlabel(chart.x.label)
    if any(line.label for line in chart.lines):
        ax.legend(frameon=False)


def _finite(line: Line) -> tuple[Any, Any]:
    points = np.array([line.x, line.y], dtype=np.float64)
    x, y = points[:, np.isfinite(points).all(0)]
    return x, y


def _finish_axis(axis: Any, set_scale: Any, set_limits: Any, described: Axis) -> None:
    if described.square_root:
        set_scale("function", functions=(lambda v: np.sqrt(np.clip(v, 0, None)), np.square))
    if described.logarithmic:
        set_scale("log")
        axis.set_minor_locator(NullLocator())
    set_limits(described.low, described.high)
    if described.ticks is None:
        axis.set_major_locator(MaxNLocator(4))
    else:
        axis.set_ticks(list(described.ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: described.show(value)))


def upper_part(label: str, lines: Sequence[Line]) -> Axis:
    """An axis from a round percentage below all values to 100%.

    Args:
        label: The axis's label.
        lines: The lines that the axis must show.
    """
    values = [value for line in lines for value in line.y if math.isfinite(value)]
    low = min(math.floor(10 * min(values, default=0.0)) / 10, 0.9)
    return Axis(label, low, 1.0, np.linspace(low, 1.0, 5).round(3).tolist(), "%")


def _light(name: str) -> str:
    return COLORS[name][0]


def _settings() -> dict[str, Any]:
    lines = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    inks = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    return {
        **dict.fromkeys(lines, _light("grid")),
        **dict.fromkeys(inks, _light("text")),
        "svg.fonttype": "none",
        "svg.hashsalt": "fsvi",
        "font.family": "sans-serif",
        "font.size": 8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
    }


def _with_themes(svg: str) -> str:
    """The SVG with color names in place of colors, and their values for both themes."""
    for name, (light, _) in COLORS.items():
        svg = svg.replace(light, f"var(--{name})")
    light, dark = (";".join(f"--{name}:{pair[i]}" for name, pair in COLORS.items()) for i in (0, 1))
    rules = f"<style>:root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    end = svg.index(">", svg.index("<svg")) + 1
    return svg[:end] + rules + svg[end:]
