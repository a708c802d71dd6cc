"""Pictures of toy predictions as in the paper, one row per method: PNG bytes, drawn without matplotlib's global state.

Every picture comes in two themes, for light and dark pages, and in two shapes: panels side by side, or stacked for
narrow screens. The colors of the classes, blue and orange, are distinct for all kinds of color vision.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from paper.tasks.toy_predictions import Array, Band, Curve, Picture, Surface

_DPI = 160
_NUM_COLORS = 160
"""Enough for smooth edges, in a third of the bytes."""
_SIGMAS = {3: 0.16, 2: 0.32, 1: 0.52}
"""The strength of color of each band."""
_LEVELS = 20
_LARGEST_VARIANCE = 0.25
"""The largest variance of a probability: half of the draws say 0, half say 1."""


@dataclass(frozen=True)
class Theme:
    """Colors of a picture.

    Attributes:
        background: Color of figure and panels, and of undecided places.
        text: Color of titles, labels and lines of the axes.
        faint: Color of grid lines and ticks.
        first: Color of class 0.
        second: Color of class 1.
        accent: Color of the mean and bands of a regression.
        deep: Color of the most uncertain places.
        point: Color of the data of a regression.
    """

    background: str
    text: str
    faint: str
    first: str
    second: str
    accent: str
    deep: str
    point: str

    def style(self) -> dict[str, Any]:
        """matplotlib settings."""
        surfaces = {name: self.background for name in ("figure.facecolor", "axes.facecolor", "savefig.facecolor")}
        inks = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
        lines = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
        return {
            **surfaces,
            **{name: self.text for name in inks},
            **{name: self.faint for name in lines},
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.titlepad": 8,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.08,
            "figure.constrained_layout.h_pad": 0.08,
        }


LIGHT = Theme("#ffffff", "#1f2933", "#c3cad3", "#0072b2", "#d55e00", "#0072b2", "#4b1d6b", "#1f2933")
DARK = Theme("#15191f", "#e6eaf0", "#4a5361", "#56b4e9", "#f0883e", "#56b4e9", "#e9c46a", "#f2f4f7")


@dataclass(frozen=True)
class FigureSet:
    """A picture as PNG: for light and dark pages, side by side, and stacked for narrow screens.

    Attributes:
        light: For light pages, with panels side by side.
        dark: The same for dark pages.
        light_stacked: For light pages on narrow screens, with panels stacked.
        dark_stacked: The same for dark pages.
    """

    light: bytes
    dark: bytes
    light_stacked: bytes
    dark_stacked: bytes


def draw_set(pictures: Mapping[str, Picture], dpi: int = _DPI) -> FigureSet:
    """The picture in both themes and both shapes.

    Args:
        pictures: Predictions by method.
        dpi: The resolution.
    """
    return FigureSet(*(draw(pictures, theme, stacked, dpi) for stacked in (False, True) for theme in (LIGHT, DARK)))


def draw(pictures: Mapping[str, Picture], theme: Theme = LIGHT, stacked: bool = False, dpi: int = _DPI) -> bytes:
    """A PNG of the predictions on one task.

    Args:
        pictures: Predictions by method.
        theme: Colors for a light or a dark page.
        stacked: Whether to put all panels into one column.
        dpi: The resolution.
    """
    rows, columns = (2 * len(pictures), 1) if stacked else (len(pictures), 2)
    kind = next(iter(pictures.values()))
    style: Any = theme.style()  # the type of its keys differs between versions of matplotlib
    with rc_context(style):
        figure = Figure(figsize=_size(kind, rows, columns, stacked), dpi=dpi)
        axes: Iterator[Axes] = iter(figure.subplots(rows, columns, squeeze=False).flat)
        if isinstance(kind, Surface):
            _draw_surfaces(axes, pictures, theme)
        else:
            _draw_curves(figure, axes, pictures, theme, stacked)
        return _png(figure)


def _size(kind: Picture, rows: int, columns: int, stacked: bool) -> tuple[float, float]:
    width = 4.4 if stacked else 5.2
    height = width * (0.8 if isinstance(kind, Surface) else 0.68)
    legend = 0.0 if isinstance(kind, Surface) else 0.4
    return columns * width, rows * height + legend


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="rgba")
    width, height = figure.canvas.get_width_height()
    image = Image.frombytes("RGBA", (width, height), buffer.getvalue()).convert("RGB")
    few = image.quantize(_NUM_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    few.save(packed, format="png", optimize=True)
    return packed.getvalue()


# Two classes in the plane -------------------------------------------------------------------------------------------


def _draw_surfaces(axes: Iterator[Axes], pictures: Mapping[str, Any], theme: Theme) -> None:
    undecided = LinearSegmentedColormap.from_list("classes", [theme.first, theme.background, theme.second])
    certain = LinearSegmentedColormap.from_list("uncertainty", [theme.background, theme.deep])
    top = _round_up(max(float(surface.variance.max()) for surface in pictures.values()))
    for name, surface in pictures.items():
        left, right = next(axes), next(axes)
        filled = _fill(left, surface, surface.mean, 1.0, undecided)
        left.contour(surface.axis, surface.axis, surface.mean, levels=[0.5], colors=theme.text, linewidths=0.9)
        _finish_surface(left, surface, theme, filled, f"{name}: predictive mean", "probability of class 1")
        filled = _fill(right, surface, surface.variance, top, certain)
        _finish_surface(right, surface, theme, filled, f"{name}: predictive variance", "variance of that probability")


def _fill(ax: Axes, surface: Surface, values: Array, top: float, colors: LinearSegmentedColormap) -> ContourSet:
    levels = np.linspace(0.0, top, _LEVELS + 1)
    return ax.contourf(surface.axis, surface.axis, values, levels=levels, cmap=colors, extend="neither")


def _finish_surface(ax: Axes, surface: Surface, theme: Theme, filled: ContourSet, title: str, label: str) -> None:
    for value, color, marker in ((0, theme.first, "o"), (1, theme.second, "^")):
        x, y = surface.x[surface.y == value].T
        ax.scatter(x, y, s=15, c=color, marker=marker, edgecolors=theme.background, linewidths=0.5, zorder=3)
    ax.set(title=title, xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    bar = ax.figure.colorbar(filled, ax=ax, label=label, shrink=0.86, ticks=MaxNLocator(5))
    bar.outline.set_visible(False)


def _round_up(value: float, step: float = 0.05) -> float:
    return min(_LARGEST_VARIANCE, step * max(1, int(np.ceil(value / step - 1e-6))))


# One input, one target ----------------------------------------------------------------------------------------------


def _draw_curves(
    figure: Figure, axes: Iterator[Axes], pictures: Mapping[str, Any], theme: Theme, stacked: bool
) -> None:
    for name, curve in pictures.items():
        for part, title, margin in ((curve.zoomed, "close to the data", 0.6), (curve.wide, "far around", 2.0)):
            ax = next(axes)
            _draw_band(ax, part, theme)
            ax.scatter(curve.x, curve.y, s=9, c=theme.point, alpha=0.8, linewidths=0, zorder=3, label="data")
            ax.set(title=f"{name}: {title}", xlabel="$x$", ylabel="$y$", xlim=part.x[[0, -1]])
            ax.set_ylim(*_limits(curve, part, margin))
            ax.grid(True, linewidth=0.5, alpha=0.6)
    handles, labels = _unique(ax)
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if stacked else len(labels))


def _draw_band(ax: Axes, band: Band, theme: Theme) -> None:
    shades = LinearSegmentedColormap.from_list("bands", [theme.background, theme.accent])
    for sigma, strength in _SIGMAS.items():
        low, high = band.mean - sigma * band.function_std, band.mean + sigma * band.function_std
        ax.fill_between(band.x, low, high, color=shades(strength), linewidth=0, label=f"function ± {sigma}σ")
    for sign, label in ((1, "observation ± 2σ"), (-1, None)):
        edge = band.mean + sign * 2 * band.target_std
        ax.plot(band.x, edge, color=theme.text, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.7, label=label)
    ax.plot(band.x, band.mean, color=theme.accent, linewidth=1.8, label="mean")


def _limits(curve: Curve, band: Band, margin: float) -> tuple[float, float]:
    """Limits that show the widest band, but at most `margin` times the data's range below and above the data."""
    low, high = float(curve.y.min()), float(curve.y.max())
    reach, widest = margin * (high - low), max(_SIGMAS) * band.function_std
    needed = float((low - band.mean + widest).max()), float((band.mean + widest - high).max())
    below, above = (min(reach, max(need, 0.2 * reach)) for need in needed)
    return low - below, high + above


def _unique(ax: Axes) -> tuple[list[Artist], list[str]]:
    """The entries of the legend, mean and data first."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: (labels[i] != "mean", labels[i] != "data", labels[i]))
    return [handles[i] for i in order], [labels[i] for i in order]
