"""Figures of a report, drawn by matplotlib from the curves that results hold: with the first seed of every method."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from cycler import cycler
from markupsafe import Markup
from matplotlib import color_sequences, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from paper.methods import dataset_name, full_name
from paper.records import Result

Curves = Mapping[str, Mapping[str, Any]]
"""A curve of every method, by its display name."""
Path: TypeAlias = tuple[str, ...]
"""Names that lead to the values of a curve."""
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": cycler(linestyle=["-", "--", ":"]) * cycler(color=color_sequences["tab10"]),
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_FIRST, _SECOND = "#0072b2", "#d55e00"
"""Blue and orange, distinct for all kinds of color vision."""


def build_figures(results: Sequence[Result]) -> list[tuple[str, str, Markup]]:
    """Title, caption and image of every figure for which the results of one profile hold curves, by task."""
    made = []
    tasks = list(dict.fromkeys(result.task for result in results))
    for task in tasks:
        own = [result for result in results if result.task == task]
        for name, (title, caption, draw) in _FIGURES.items():
            curves = _first_seeds(own, name)
            if curves:
                with rc_context(_STYLE):
                    image = _image(draw(curves), title)
                made.append((title if len(tasks) == 1 else f"{title}: {task}", caption, image))
    return made


def _first_seeds(results: Sequence[Result], name: str) -> Curves:
    """The curve called `name` of each method's lowest seed; FSVI's first."""
    curves: dict[str, Mapping[str, Any]] = {}
    order = lambda r: (r.method != "fsvi", r.method.startswith("ensemble:"), r.label, r.seed)  # noqa: E731
    for result in sorted(results, key=order):
        if name in result.curves:
            curves.setdefault(full_name(result.label), result.curves[name])
    return curves


def _image(figure: Figure, title: str) -> Markup:
    """The figure as an image inside the page."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    content = base64.b64encode(file.getvalue()).decode("ascii")
    return Markup(f'<img alt="{title}" src="data:image/png;base64,{content}">')


def _grid(num: int, width: float = 2.6, height: float = 2.4, most: int = 4) -> tuple[Figure, list[Axes]]:
    columns = min(num, most)
    rows = -(-num // columns)
    figure = Figure(figsize=(columns * width, rows * height))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[num:]:
        unused.set_visible(False)
    return figure, axes[:num]


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))


def reliability(curves: Curves) -> Figure:
    """Accuracy against confidence: a small chart per method, with the other methods in gray."""
    figure, axes = _grid(len(curves), 2.1, 2.2, 5)
    for ax, name in zip(axes, curves, strict=True):
        ax.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle="--")
        for other, curve in sorted(curves.items(), key=lambda item: item[0] == name):
            style = {"color": _FIRST} if other == name else {"color": "lightgray", "linewidth": 0.8}
            ax.plot(curve["confidence"], curve["accuracy"], **style)
        ax.set(title=name, xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    return figure


def entropy(curves: Curves) -> Figure:
    """Histograms of predictive entropy on test images and on those of other datasets, a small chart per method."""
    figure, axes = _grid(len(curves), 2.1, 2.2, 5)
    for ax, (name, curve) in zip(axes, curves.items(), strict=True):
        for i, (dataset, shares) in enumerate(curve.items()):
            ax.stairs(shares, np.linspace(0, 1, len(shares) + 1), label=dataset_name(dataset), color=f"C{i}")
        ax.set(title=name, xlabel="entropy / log C", ylabel="share of images", xlim=(0, 1))
        ax.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    _legend(figure, axes[0])
    return figure


def _lines(curves: Curves, charts: Sequence[tuple[str, str, Path, Path]]) -> tuple[Figure, list[Axes]]:
    """Charts of title, label of the x-axis, and where a curve has x and y: one line per method that has both."""
    charts = [each for each in charts if any(_at(curve, each[3]) for curve in curves.values())]
    figure, axes = _grid(len(charts), 3.3, 2.8)
    for ax, (title, label, x, y) in zip(axes, charts, strict=True):
        for name, curve in curves.items():
            ax.plot(_at(curve, x) or [], _at(curve, y) or [], label=name)
        ax.set(title=title, xlabel=label)
    _legend(figure, axes[0])
    return figure, axes


def _at(curve: Any, path: Path) -> Any:
    """The values at a path of names; none if there are none."""
    return reduce(lambda found, name: found.get(name, {}), path, curve)


def _domains(curves: Curves) -> list[str]:
    return list(dict.fromkeys(domain for curve in curves.values() for domain in curve))


def _shift(along: str, label: str) -> Callable[[Curves], Figure]:
    names = {"brier": "Brier score", "entropy": "Entropy", "accuracy": "Accuracy"}
    return lambda curves: _lines(curves, [(names[key], label, (along,), (key,)) for key in names])[0]


def roc(curves: Curves) -> Figure:
    """Sensitivity against the false positive rate, one chart per test set, with the mark of the health service."""
    charts = [(dataset_name(d), "1 − specificity", (d, "fpr"), (d, "tpr")) for d in _domains(curves)]
    figure, axes = _lines(curves, charts)
    for ax in axes:
        ax.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle="--")
        ax.plot(0.2, 0.85, "k*")
        ax.set(ylabel="sensitivity")
    return figure


def referral(curves: Curves) -> Figure:
    """Accuracy and AUC of the images that are kept against the share of referred images, for each test set."""
    shown = product(_domains(curves), ("accuracy", "auroc"))
    return _lines(curves, [(f"{dataset_name(d)}: {k}", "share referred", (d, "rate"), (d, k)) for d, k in shown])[0]


def forgetting(curves: Curves) -> Figure:
    """Accuracy on all tasks seen so far, and on the first one, against the number of tasks learned."""
    titles = {"mean": "Accuracy on all tasks so far", "first": "Accuracy on the first task"}
    return _lines(curves, [(title, "tasks learned", ("task",), (key,)) for key, title in titles.items()])[0]


def picture(curves: Curves) -> Figure:
    """Predictions over the plane or along a line, one row per method."""
    is_surface = next(iter(curves.values()))["kind"] == "surface"
    figure = Figure(figsize=(10.4, (4.2 if is_surface else 3.4) * len(curves)))
    axes = figure.subplots(len(curves), 2, squeeze=False)
    for row, (name, curve) in zip(axes, curves.items(), strict=True):
        (_surface if is_surface else _bands)(row, name, curve)
    if not is_surface:
        _legend(figure, axes[0, 0])
    return figure


def _surface(row: Sequence[Axes], name: str, curve: Mapping[str, Any]) -> None:
    x, y, axis = (np.asarray(curve[key]) for key in ("x", "y", "axis"))
    undecided = LinearSegmentedColormap.from_list("classes", [_FIRST, "white", _SECOND])
    for ax, key, colors, top, label in (
        (row[0], "mean", undecided, 1.0, "probability of class 1"),
        (row[1], "variance", "Purples", 0.25, "variance of that probability"),
    ):
        filled = ax.contourf(axis, axis, np.asarray(curve[key]), levels=np.linspace(0, top, 21), cmap=colors)
        ax.figure.colorbar(filled, ax=ax, label=label, shrink=0.85)
        for value, color, marker in ((0, _FIRST, "o"), (1, _SECOND, "^")):
            points = x[y == value]
            ax.scatter(points[:, 0], points[:, 1], s=14, c=color, marker=marker, edgecolors="white", linewidths=0.5)
        ax.set(title=f"{name}: predictive {key}", xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        ax.grid(False)


def _bands(row: Sequence[Axes], name: str, curve: Mapping[str, Any]) -> None:
    low, high = min(curve["y"]), max(curve["y"])
    parts = (("zoomed", "close to the data", 0.6), ("wide", "far around", 2.0))
    for ax, (key, title, margin) in zip(row, parts, strict=True):
        x, mean, std, noisy = (np.asarray(curve[key][each]) for each in ("x", "mean", "function_std", "target_std"))
        ax.plot(x, mean, color=_FIRST, linewidth=1.8, label="mean")
        for sigma in (1, 2, 3):
            band = (mean - sigma * std, mean + sigma * std)
            ax.fill_between(x, *band, color=_FIRST, alpha=0.18, linewidth=0, label=f"function ± {sigma}σ")
        for sign, label in ((1, "observation ± 2σ"), (-1, None)):
            ax.plot(x, mean + sign * 2 * noisy, color="black", linewidth=0.8, linestyle="--", label=label)
        ax.scatter(curve["x"], curve["y"], s=8, c="black", linewidths=0, label="data", zorder=3)
        ax.set(title=f"{name}: {title}", xlabel="$x$", ylabel="$y$", xlim=(x[0], x[-1]))
        ax.set_ylim(low - margin * (high - low), high + margin * (high - low))


_FIGURES: dict[str, tuple[str, str, Callable[[Curves], Figure]]] = {
    "reliability": (
        "Reliability",
        "If a method is 80% confident, it should be right for 80% of the inputs: then the line is on the dashed "
        "diagonal. Below it, a method is overconfident. The gray lines are the other methods.",
        reliability,
    ),
    "entropy": (
        "Predictive entropy",
        "At 0 a prediction is certain, at 1 all classes are equally likely. Test images should be on the left, images "
        "of other kinds on the right. The vertical scale is a square root, which makes small shares visible.",
        entropy,
    ),
    "rotation": (
        "Rotation",
        "Digits are rotated away from the training data. The entropy of a good method rises, and its Brier score "
        "(lower is better) stays low.",
        _shift("degrees", "rotation in degrees"),
    ),
    "corruption": (
        "Corruption",
        "Means over the kinds of corruption. Lower Brier scores are better; entropy should rise as accuracy falls.",
        _shift("severity", "severity of corruption"),
    ),
    "roc": (
        "ROC",
        "The share of sick patients who are found against the share of healthy patients with a false alarm. The star "
        "is what the British health service requires of a screening: sensitivity 85%, specificity 80%.",
        roc,
    ),
    "referral": (
        "Referral",
        "The most uncertain images are referred to an expert; the model judges the others. The curve rises if a method "
        "is uncertain where it is wrong.",
        referral,
    ),
    "forgetting": (
        "Forgetting",
        "Accuracy on test images while tasks are learned one after the other. A method that forgets falls.",
        forgetting,
    ),
    "picture": (
        "Predictions",
        "The uncertainty should be small near the data and large elsewhere. In the plane: the probability of the "
        "orange class (triangles), and how much it varies between functions. Along a line: the mean, and one, two and "
        "three standard deviations of the function; about 95% of new observations lie between the dashed lines.",
        picture,
    ),
}
"""Title, caption and drawing by the name of a curve in results."""
