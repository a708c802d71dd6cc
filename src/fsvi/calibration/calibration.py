"""Several calibration steps as one: scalings first, then a conformal step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fsvi.calibration.intervals import ConformalIntervals, Intervals
from fsvi.calibration.scaling import Scaling
from fsvi.calibration.sets import ConformalSets
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.serialization import Configurable
from fsvi.validation import as_tensor, check_fraction, check_seed, check_type

Conformal: TypeAlias = ConformalSets | ConformalIntervals
"""A step that turns predictions into sets or intervals."""


class Calibration(Configurable):
    """Calibration steps in their order, fitted on held-out predictions and applied to any prediction.

    If there are both scalings and a conformal step, `fit` divides the held-out rows at random: the coverage guarantee
    needs rows that the scalings have not seen.

    Args:
        steps: Scalings, then at most one conformal step: `[TemperatureScaling(), LAC()]`.
        scaling_share: Share of the held-out rows that fits the scalings when a conformal step gets the others.
    """

    def __init__(self, steps: Sequence[Scaling | Conformal], scaling_share: float = 0.3) -> None:
        check_type("steps", steps, Sequence, "a list of calibration steps such as [TemperatureScaling(), LAC()]")
        self.steps = list(steps)
        self.scaling_share = check_fraction("scaling_share", scaling_share)
        self._check_order()

    @property
    def scalings(self) -> list[Scaling]:
        """The steps that correct predictions."""
        return [step for step in self.steps if isinstance(step, Scaling)]

    @property
    def conformal(self) -> Conformal | None:
        """The step that makes sets or intervals, if there is one."""
        last = self.steps[-1]
        return None if isinstance(last, Scaling) else last

    def fit(self, p: Any, y: Any, seed: int = 0) -> Calibration:
        """Fit every step on held-out predictions `p` and their targets `y`, each after the steps before it.

        The rows must be exchangeable with those to come, and must have been used neither for training nor for stopping
        or selecting the model. `seed` divides them.

        Args:
            p: Held-out predictions.
            y: Their targets.
            seed: The seed by which the rows are divided.
        """
        check_type("p", p, Predictive, "a prediction such as method.predict(x)")
        y = as_tensor("y", y).cpu()
        if y.dim() == 0 or len(y) != len(p):
            raise InvalidInputError(f"there are {len(p)} predictions, but targets of shape {tuple(y.shape)}.")
        first, rest = self._divide(len(y), seed)
        scaled, targets = p[first], y[first]
        for step in self.scalings:
            scaled = step.fit(scaled, targets)(scaled)
        if self.conformal is not None:
            self.conformal.fit(self(p[rest]), y[rest])
        return self

    def __call__(self, p: Any) -> Any:
        """The scaled prediction; `p` itself without scalings."""
        for step in self.scalings:
            p = step(p)
        return p

    def sets(self, p: Any, alpha: float = 0.1) -> Tensor:
        """Prediction sets (n, classes) of predictions `p`, which are scaled first; see `ConformalSets`.

        Args:
            p: Predictions of the method, before scaling.
            alpha: The largest chance that a set misses the label.
        """
        if not isinstance(self.conformal, ConformalSets):
            raise InvalidInputError("this calibration makes no prediction sets: its last step must be LAC() or APS().")
        return self.conformal.sets(self(p), alpha)

    def intervals(self, p: Any, alpha: float = 0.1) -> Intervals:
        """Prediction intervals of predictions `p`, which are scaled first; see `ConformalIntervals`.

        Args:
            p: Predictions of the method, before scaling.
            alpha: The largest chance that an interval misses the target.
        """
        if not isinstance(self.conformal, ConformalIntervals):
            raise InvalidInputError("this calibration makes no intervals: its last step must be ConformalIntervals().")
        return self.conformal.intervals(self(p), alpha)

    def _divide(self, num: int, seed: int) -> tuple[Tensor, Tensor]:
        """The rows for the scalings and those for the conformal step; all for both if there is only one kind."""
        rows = torch.arange(num)
        if not self.scalings or self.conformal is None:
            return rows, rows
        order = torch.randperm(num, generator=torch.Generator().manual_seed(check_seed(seed)))
        first, rest = order.tensor_split([int(self.scaling_share * num)])
        if len(first) == 0 or len(rest) == 0:
            raise InvalidInputError(f"{num} held-out rows are too few to fit scalings and a conformal step: give more.")
        return first, rest

    def _check_order(self) -> None:
        if not self.steps:
            raise InvalidInputError("steps is empty: give at least one, such as TemperatureScaling().")
        for index, step in enumerate(self.steps):
            if not isinstance(step, (Scaling, ConformalSets, ConformalIntervals)):
                raise InvalidInputError(f"step {index} is a {type(step).__name__}, not a calibration step.")
            if not isinstance(step, Scaling) and index < len(self.steps) - 1:
                raise InvalidInputError(
                    f"{type(step).__name__} is step {index}, but a conformal step must be the last."
                )
