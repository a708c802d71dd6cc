"""The page that says whether to trust a model of a table: one HTML file without dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

import fsvi
from fsvi.estimators.assessment import Assessment, Growth
from fsvi.serialization import write_bytes
from fsvi.tables import TableEncoder

_WIDTH, _HEIGHT = 240, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 22
METRICS: dict[str, tuple[str, str, str]] = {
    "accuracy": ("accuracy", "share of held-out rows whose class is right; higher is better", "{:.3f}"),
    "rmse": ("typical error", "root mean square error in the target's units; lower is better", "{:.4g}"),
    "nll": ("NLL", "mean −log probability (density) of the truth; lower is better", "{:.3f}"),
    "ece": ("calibration error", "mean gap between probabilities and frequencies; lower is better", "{:.3f}"),
    "coverage_0.5": ("50% intervals hold", "should be close to 50%", "{:.1%}"),
    "coverage_0.8": ("80% intervals hold", "should be close to 80%", "{:.1%}"),
    "coverage_0.9": ("90% intervals hold", "should be close to 90%", "{:.1%}"),
    "coverage_0.95": ("95% intervals hold", "should be close to 95%", "{:.1%}"),
    "conformal": (
        "calibrated 95% {kind} hold",
        "at least 95% on average over calibrations, for rows like these",
        "{:.1%}",
    ),
    "set_size": ("classes per set", "1 would be certainty", "{:.2f}"),
}
"""For each number: its name, what it says, and how it is written."""


@dataclass(frozen=True)
class Plot:
    """Lines in a small picture, in the units of an SVG; a line is named by its model.

    Args:
        title: What stands above.
        lines: For each model, points (x, y).
        x: Ends of the horizontal axis.
        y: Ends of the vertical axis.
        x_ticks: Places on the horizontal axis with their labels.
        y_ticks: Places on the vertical axis with their labels.
        diagonal: Whether the line y = x is drawn.
        is_marked: Whether the title is marked as something to look at.
    """

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    diagonal: bool = False
    is_marked: bool = False

    width, height = _WIDTH, _HEIGHT
    left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM

    def across(self, value: float) -> float:
        """Where a value of the horizontal axis lies."""
        return round(self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left), 1)

    def up(self, value: float) -> float:
        """Where a value of the vertical axis lies."""
        return round(self.bottom - (value - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top), 1)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """The line as an SVG path."""
        return "M" + "L".join(f"{self.across(x)} {self.up(y)}" for x, y in points)


def write_report(
    path: Path, assessment: Assessment, encoder: TableEncoder, facts: Mapping[str, Any], model: Path
) -> None:
    """Write the page.

    Args:
        path: The HTML file.
        assessment: The results on test rows.
        encoder: The encoding of the columns.
        facts: Facts about the run, by name.
        model: The file with the model.
    """
    environment = Environment(
        loader=PackageLoader("fsvi.cli"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("table_report.html").render(
        assessment=assessment,
        facts=facts,
        model=model.name,
        names=[name for name in assessment.metrics if name != "guess"],
        rows=_metric_rows(assessment),
        reliability=_reliability(assessment),
        referral=_referral(assessment),
        growth=_growth(assessment),
        columns=encoder.columns,
        left_out=encoder.left_out,
        version=fsvi.__version__,
    )
    write_bytes(path, page.encode())


def _metric_rows(assessment: Assessment) -> list[tuple[str, str, list[str]]]:
    first = next(iter(assessment.metrics.values()))
    kind = "sets" if assessment.task == "classification" else "intervals"
    return [
        (
            title.format(kind=kind),
            meaning,
            [form.format(each[key]) if key in each else "" for each in assessment.metrics.values()],
        )
        for key, (title, meaning, form) in METRICS.items()
        if key in first
    ]


def _reliability(assessment: Assessment) -> Plot:
    ticks = [(0.0, "0"), (0.5, "50%"), (1.0, "100%")]
    title = "Observed against promised " + ("accuracy" if assessment.task == "classification" else "coverage")
    return Plot(title, assessment.reliability, (0.0, 1.0), (0.0, 1.0), ticks, ticks, diagonal=True)


def _referral(assessment: Assessment) -> Plot:
    points = assessment.referral
    highest = max([error for _, error in points] + [1e-9]) * 1.1
    is_share = assessment.task == "classification"
    show = (lambda value: f"{value:.0%}") if is_share and highest > 0.05 else (lambda value: f"{value:.2g}")
    name = next(iter(assessment.reliability))
    title = ("Errors" if is_share else "Typical error") + " among the other rows when the least sure are referred"
    return Plot(
        title,
        {name: points},
        (0.0, 0.9),
        (0.0, highest),
        [(0.0, "0"), (0.3, "30%"), (0.6, "60%"), (0.9, "90%")],
        [(0.0, "0"), (highest, show(highest))],
    )


def _growth(assessment: Assessment) -> list[Plot]:
    """One plot per column, all with one vertical axis; those to look at first."""
    highest = max([1.0, *(level for each in assessment.growth for line in each.levels.values() for level in line)])
    if assessment.task == "regression":
        highest = min(highest, 4.0)
    ordered = sorted(assessment.growth, key=lambda each: each.is_noticed)
    return [_growth_plot(each, highest) for each in ordered]


def _growth_plot(growth: Growth, highest: float) -> Plot:
    lines = {
        name: list(zip(growth.shifts, [min(level, highest) for level in levels], strict=True))
        for name, levels in growth.levels.items()
    }
    is_category = len(growth.shifts) == 2
    x_ticks = [(0.0, "known"), (1.0, "unknown")] if is_category else [(-8.0, "−8σ"), (0.0, "data"), (8.0, "+8σ")]
    y_ticks = [(0.0, "0"), (highest, f"{highest:.2g}")]
    ends = (growth.shifts[0], growth.shifts[-1])
    return Plot(growth.name, lines, ends, (0.0, highest), x_ticks, y_ticks, is_marked=not growth.is_noticed)
