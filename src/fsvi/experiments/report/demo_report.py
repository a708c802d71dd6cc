"""The demo's report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsvi.experiments.report.page import render
from fsvi.experiments.report.toy_figures import FigureSet


@dataclass(frozen=True)
class Metric:
    """How a table shows a number.

    Attributes:
        label: Its name.
        meaning: What it says, for someone who sees it for the first time.
        decimals: Digits after the point.
        unit: What follows the number.
    """

    label: str
    meaning: str
    decimals: int = 2
    unit: str = ""

    def show(self, value: float) -> str:
        """The number as text."""
        return f"{value:.{self.decimals}f}{self.unit}".replace("-", "−")


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", "share of 1,000 held-out points whose class is right", 3),
    "nll": Metric("NLL", "mean −log probability of the right class on held-out points; lower is better", 3),
    "far_entropy": Metric("entropy far away", "3 or more from every training point, mean; 1 is a coin toss", 3),
    "far_entropy_min": Metric("lowest entropy far away", "the most self-assured place that far out", 3),
    "near_entropy": Metric("entropy near the data", "within 0.3 of a training point, mean; 0 is certainty", 3),
    "rmse": Metric("RMSE", "typical error of the mean at the data", 3),
    "log_likelihood": Metric("log-likelihood", "mean log density of the data; higher is better", 3),
    "noise": Metric("noise", "learned standard deviation of the observations around the function", 3),
    "data_std": Metric("σ on the data", "median standard deviation of the function where there are data", 3),
    "gap_std_ratio": Metric("σ in the gap", "compared with σ on the data", 1, " ×"),
    "left_std_ratio": Metric("σ 4 left of the data", "compared with σ on the data", 1, " ×"),
    "right_std_ratio": Metric("σ 4 right of the data", "compared with σ on the data", 1, " ×"),
}
"""Every number in the report's tables, in no particular order."""


def render_report(summary: Mapping[str, Any], figures: Mapping[str, FigureSet]) -> str:
    """The page for what a run found, `summary`, and its figures by task."""
    return render("report.html", summary=summary, figures=figures, metrics=METRICS)
