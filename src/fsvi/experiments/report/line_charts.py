"""Line charts as plain geometry: `chart.html` writes them as SVG whose colours are the page's own, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

_INKS = 8
_LARGEST_CHART, _SMALL_CHART = (330, 240), (180, 165)
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 10, 8, 36


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; `ticks` are labelled by `show`, and values are spaced by `scale`."""

    label: str
    low: float = 0.0
    high: float = 1.0
    ticks: Sequence[float] = (0.0, 0.5, 1.0)
    show: Callable[[float], str] = "{:g}".format
    scale: Callable[[float], float] = float

    @classmethod
    def around(cls, label: str, values: Sequence[float]) -> Axis:
        """From 0 to a round number above all the values."""
        ticks = MaxNLocator(4).tick_values(0.0, max([v for v in values if math.isfinite(v)], default=1.0) or 1.0)
        return cls(label, 0.0, float(ticks[-1]), [float(tick) for tick in ticks])

    def share(self, value: float) -> float:
        """How far along the axis the value lies, from 0 to 1."""
        low, high = self.scale(self.low), self.scale(self.high)
        return (self.scale(value) - low) / (high - low)


@dataclass(frozen=True)
class Line:
    """Points joined by a line; `style` names its colour and dashes, `filled` fills the area below."""

    x: Sequence[float]
    y: Sequence[float]
    style: str
    filled: bool = False


@dataclass(frozen=True)
class Mark:
    """A point with its name."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Lines over two axes.

    Attributes:
        title: What stands above.
        x: The horizontal axis.
        y: The vertical axis.
        lines: What is drawn, the last on top.
        marks: Single points.
        diagonal: Whether the line x = y is drawn, for comparison.
        small: Whether it is one of many.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    diagonal: bool = False
    small: bool = False

    @property
    def width(self) -> int:
        """Of the picture."""
        return (_SMALL_CHART if self.small else _LARGEST_CHART)[0]

    @property
    def height(self) -> int:
        """Of the picture."""
        return (_SMALL_CHART if self.small else _LARGEST_CHART)[1]

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the area between the axes."""
        return _LEFT, _TOP, self.width - _RIGHT, self.height - _BOTTOM

    def across(self, value: float) -> float:
        """Where a value of the horizontal axis lies."""
        left, _, right, _ = self.box
        return round(left + self.x.share(value) * (right - left), 1)

    def up(self, value: float) -> float:
        """Where a value of the vertical axis lies."""
        _, top, _, bottom = self.box
        return round(bottom - self.y.share(value) * (bottom - top), 1)

    def path(self, line: Line) -> str:
        """The line as an SVG path; points that are not numbers are left out."""
        pairs = zip(line.x, line.y, strict=True)
        points = [f"{self.across(x)} {self.up(y)}" for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
        return "M" + "L".join(points) if points else ""

    def area(self, line: Line) -> str:
        """The area between the line and the bottom, as an SVG path."""
        bottom, first, last = self.box[3], self.across(line.x[0]), self.across(line.x[-1])
        return f"{self.path(line)}L{last} {bottom}L{first} {bottom}Z"


def line_style(index: int) -> str:
    """A colour and dashes that no other of the first 24 indices has."""
    return f"ink{index % _INKS} dash{index // _INKS % 3}"
