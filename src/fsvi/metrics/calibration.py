"""Calibration: are predictions with a confidence of 80% right 80% of the time?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsvi.metrics.inputs import Probabilities, check_predictions
from fsvi.validation import check_count


@dataclass(frozen=True)
class Reliability:
    """Inputs grouped by confidence, the largest class probability; empty bins have NaN.

    Attributes:
        confidence: The mean confidence per bin, (bins,).
        accuracy: The fraction of right answers per bin, (bins,).
        count: The number of inputs per bin, (bins,).
        edges: Bin b is (edges[b], edges[b + 1]], (bins + 1,).
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    edges: Tensor

    @property
    def ece(self) -> float:
        """Σ_b n_b/n |accuracy_b − confidence_b|, the expected calibration error."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return float((self.count * gaps).sum() / self.count.sum())


def reliability(p: Probabilities, y: Any, bins: int = 15, adaptive: bool = False) -> Reliability:
    """The reliability diagram: confidence and accuracy per bin.

    Inputs of equal confidence share a bin, so the order of the data does not matter. Adaptive bins that would be empty
    for this reason are left out.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
        bins: The number of bins.
        adaptive: Whether bins have about equal counts instead of equal widths.
    """
    check_count("bins", bins)
    probabilities, y = check_predictions(p, y)
    confidence, predicted = probabilities.max(1)
    edges = _quantiles(confidence, bins) if adaptive else torch.linspace(0, 1, bins + 1, dtype=confidence.dtype)
    index = torch.bucketize(confidence, edges[1:-1])
    count, confident, right = (
        torch.zeros(len(edges) - 1, dtype=confidence.dtype).index_add_(0, index, values)
        for values in (torch.ones_like(confidence), confidence, (predicted == y).double())
    )
    return Reliability(confident / count, right / count, count.long(), edges)


def ece(p: Probabilities, y: Any, bins: int = 15, adaptive: bool = False) -> float:
    """Expected calibration error of the most probable class (Guo et al. 2017).

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
        bins: The number of bins.
        adaptive: Whether bins have about equal counts; see `reliability`.
    """
    return reliability(p, y, bins, adaptive).ece


def _quantiles(values: Tensor, bins: int) -> Tensor:
    """Bin edges with about equal counts of `values` between them: the last value of each bin, without repetitions."""
    ends = (torch.arange(1, bins + 1) * len(values) + bins - 1) // bins
    return torch.cat([values.new_zeros(1), values.sort().values[ends - 1].unique()])
