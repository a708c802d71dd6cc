"""Whether a predicted confidence of 80% is right 80% of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsvi.metrics.inputs import Probabilities, check_predictions
from fsvi.validation import check_count


@dataclass(frozen=True)
class Reliability:
    """Inputs grouped by confidence, the largest class probability; bins without inputs hold NaN.

    Attributes:
        confidence: Mean confidence in each bin, (bins,).
        accuracy: Share of right answers in each bin, (bins,).
        count: Inputs in each bin, (bins,).
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
    """The reliability diagram, on bins of equal width, or `adaptive` ones of about equal count.

    Inputs of equal confidence share a bin, so that the order of the data does not matter; adaptive bins that would be
    empty for that reason are left out.
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
    """Expected calibration error of the most probable class (Guo et al. 2017); see `reliability` for the bins."""
    return reliability(p, y, bins, adaptive).ece


def _quantiles(values: Tensor, bins: int) -> Tensor:
    """Edges between which lie about equally many of `values`: each bin's last value in their order, each once."""
    ends = (torch.arange(1, bins + 1) * len(values) + bins - 1) // bins
    return torch.cat([values.new_zeros(1), values.sort().values[ends - 1].unique()])
