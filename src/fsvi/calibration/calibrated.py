"""Calibration steps as one object, and a trained method with its calibration: one object, one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fsvi.calibration.conformal import Conformal, ConformalIntervals, ConformalSets, Intervals
from fsvi.calibration.scaling import Rescaling
from fsvi.errors import InvalidInputError
from fsvi.export import export_method
from fsvi.likelihoods import Predictive, gathered
from fsvi.methods.base import Method
from fsvi.serialization import Configurable, check_draws
from fsvi.validation import as_tensor, check_count, check_fraction, check_seed, check_type


class Calibration(Configurable):
    """Calibration steps in their order, fitted on held-out predictions and applied to any prediction.

    If there are both scalings and a conformal step, `fit` divides the held-out rows at random: the coverage guarantee
    needs rows that the scalings have not seen.

    Args:
        steps: Scalings, then at most one conformal step: `[TemperatureScaling(), LAC()]`.
        scaling_share: Share of the held-out rows that fits the scalings when a conformal step gets the others.
    """

    def __init__(self, steps: Sequence[Rescaling | Conformal], scaling_share: float = 0.3) -> None:
        self.steps = list(steps)
        self.scaling_share = check_fraction("scaling_share", scaling_share)
        is_scaling = [isinstance(step, Rescaling) for step in self.steps]
        if not self.steps or not all(is_scaling[:-1]) or not isinstance(self.steps[-1], (Rescaling, Conformal)):
            given = ", ".join(type(step).__name__ for step in self.steps)
            raise InvalidInputError(
                f"steps=[{given}] must be scalings and then at most one conformal step: [TemperatureScaling(), LAC()]."
            )

    @property
    def scalings(self) -> list[Rescaling]:
        """The steps that correct predictions."""
        return [step for step in self.steps if isinstance(step, Rescaling)]

    @property
    def conformal(self) -> Conformal | None:
        """The step that makes sets or intervals, if there is one."""
        last = self.steps[-1]
        return None if isinstance(last, Rescaling) else last

    def fit(self, p: Any, y: Any, seed: int = 0) -> Calibration:
        """Fit every step on held-out rows, each after the steps before it.

        The rows must be exchangeable with those to come, and must have been used neither for training nor for stopping
        or selecting the model.

        Args:
            p: Held-out predictions.
            y: Their targets.
            seed: The seed by which the rows are divided.
        """
        check_type("p", p, Predictive, "a prediction such as method.predict(x)")
        y = as_tensor("y", y).cpu()
        if y.dim() == 0 or len(y) != len(p):
            raise InvalidInputError(f"there are {len(p)} predictions, but targets of shape {tuple(y.shape)}.")
        first = rest = torch.arange(len(y))
        if self.scalings and self.conformal is not None:
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(check_seed(seed)))
            first, rest = order.tensor_split([int(self.scaling_share * len(y))])
            if len(first) == 0:
                raise InvalidInputError(f"{len(y)} held-out rows are too few for scalings and a conformal step.")
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


class Calibrated(Configurable):
    """A method whose predictions are calibrated. `save` writes both to one file, which `fsvi.load` restores.

    Sets and intervals always use the draws that the calibration was fitted with: `num_samples` and `seed` fix them.
    Other draws would be another predictor, for which nothing is guaranteed. Everything that is not defined here is the
    method's, such as `likelihood`.

    Args:
        method: The trained method.
        calibration: Its calibration, fitted on `method.predict(x, num_samples, seed)` for held-out rows.
        num_samples: Draws per prediction.
        seed: Seed of the draws.
    """

    _transient = ("method",)

    def __init__(self, method: Method, calibration: Calibration, num_samples: int = 100, seed: int = 0) -> None:
        check_type("method", method, Method, "a trained method such as fsvi.FSVI(...)")
        check_type("calibration", calibration, Calibration, "a fitted Calibration")
        self.method = method
        self.calibration = calibration
        self.num_samples = check_draws(check_count("num_samples", num_samples))
        self.seed = check_seed(seed)

    @classmethod
    def fit(
        cls,
        method: Method,
        steps: Sequence[Rescaling | Conformal],
        x: Any,
        y: Any,
        num_samples: int = 100,
        seed: int = 0,
    ) -> Calibrated:
        """Calibrate a trained method on held-out data; see `Calibration.fit`.

        Args:
            method: The trained method.
            steps: The steps of the calibration, in order.
            x: Held-out inputs.
            y: Their targets.
            num_samples: Draws per prediction.
            seed: Seed of the draws.
        """
        return cls(method, Calibration(steps).fit(method.predict(x, num_samples, seed), y), num_samples, seed)

    def predict(
        self,
        x: Any,
        num_samples: int | None = None,
        seed: int | None = None,
        batch_size: int = 512,
        summary: bool = False,
    ) -> Predictive:
        """The scaled prediction.

        Args:
            x: Inputs, (n, ...).
            num_samples: Draws per prediction; None takes those of the calibration.
            seed: Seed of the draws; None takes that of the calibration.
            batch_size: The number of inputs per pass through the network.
            summary: Do not keep the draws; see `Method.predict`.
        """
        if summary:
            x = as_tensor("x", x)
            return gathered(self.predict_batches(x, num_samples, seed, batch_size, summary), len(x))
        p: Predictive = self.calibration(self.method.predict(x, *self._sampling(num_samples, seed), batch_size))
        return p

    def predict_batches(
        self,
        loader: Any,
        num_samples: int | None = None,
        seed: int | None = None,
        batch_size: int = 512,
        summary: bool = False,
    ) -> Iterator[Predictive]:
        """One scaled prediction per batch; see `Method.predict_batches`.

        Args:
            loader: Batches of inputs x, or of (x, y).
            num_samples: Draws per prediction; None takes those of the calibration.
            seed: Seed of the draws; None takes that of the calibration.
            batch_size: The number of inputs per pass through the network.
            summary: Yield summaries without the draws.
        """
        for p in self.method.predict_batches(loader, *self._sampling(num_samples, seed), batch_size):
            yield self.calibration(p).summary() if summary else self.calibration(p)

    def sets(self, x: Any, alpha: float = 0.1, batch_size: int = 512) -> Tensor:
        """The classes in the prediction set of each input, (n, classes).

        Args:
            x: Inputs, (n, ...).
            alpha: The largest chance that a set misses the label.
            batch_size: The number of inputs per pass through the network.
        """
        return self.calibration.sets(self.method.predict(x, self.num_samples, self.seed, batch_size), alpha)

    def intervals(self, x: Any, alpha: float = 0.1, batch_size: int = 512) -> Intervals:
        """The prediction interval of each input and target.

        Args:
            x: Inputs, (n, ...).
            alpha: The largest chance that an interval misses the target.
            batch_size: The number of inputs per pass through the network.
        """
        return self.calibration.intervals(self.method.predict(x, self.num_samples, self.seed, batch_size), alpha)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write method and calibration to one file, without pickle; `fsvi.load` restores both."""
        self.method.save(path, calibrated=self)

    def export(
        self,
        path: str | os.PathLike[str],
        num_samples: int | None = None,
        seed: int | None = None,
        example: Any = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Write the scaled prediction as one graph; see `Method.export`. Sets and intervals are not part of it.

        Args:
            path: The file, .onnx or .pt2.
            num_samples: The number of draws; None takes those of the calibration.
            seed: The seed of the draws; None takes that of the calibration.
            example: Inputs like those to come; None makes some up.
            labels: The names of the classes.
        """
        export_method(self.method, path, *self._sampling(num_samples, seed), example, labels, self.calibration)

    def _sampling(self, num_samples: int | None, seed: int | None) -> tuple[int, int]:
        return self.num_samples if num_samples is None else num_samples, self.seed if seed is None else seed

    def __getattr__(self, name: str) -> Any:
        if name == "method":  # not set yet, as while a copy is being made
            raise AttributeError(name)
        return getattr(self.method, name)
