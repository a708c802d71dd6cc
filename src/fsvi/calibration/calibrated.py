"""Calibration steps as one object, and a trained method with its calibration: one object, one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.calibration.conformal import Conformal, ConformalIntervals, ConformalSets, Intervals
from fsvi.calibration.scaling import Rescaling
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.methods.base import Composite, Functions, Method
from fsvi.serialization import Configurable, check_draws
from fsvi.validation import as_tensor, check_count, check_fraction, check_seed, check_type


class Calibration(Configurable):
    """A scaling, a conformal step, or both, fitted on held-out predictions and applied to any prediction.

    If there are both, `fit` divides the held-out rows at random: the coverage guarantee needs rows that the scaling has
    not seen.

    Args:
        steps: The scaling, then the conformal step: `[TemperatureScaling(), LAC()]`. One of them may be left out.
        scaling_share: Share of the held-out rows that fits the scaling when a conformal step gets the others.

    Attributes:
        scaling: The step that corrects predictions, or None.
        conformal: The step that makes sets or intervals, or None.
    """

    def __init__(self, steps: Sequence[Rescaling | Conformal], scaling_share: float = 0.3) -> None:
        self.steps = list(steps)
        self.scaling_share = check_fraction("scaling_share", scaling_share)
        self.scaling = next((step for step in self.steps if isinstance(step, Rescaling)), None)
        self.conformal = next((step for step in self.steps if isinstance(step, Conformal)), None)
        if not self.steps or self.steps != [step for step in (self.scaling, self.conformal) if step is not None]:
            given = ", ".join(type(step).__name__ for step in self.steps)
            raise InvalidInputError(
                f"steps=[{given}] must be a scaling, a conformal step, or both: [TemperatureScaling(), LAC()]."
            )

    def fit(self, p: Any, y: Any, seed: int = 0) -> Calibration:
        """Fit the scaling on held-out rows, and the conformal step on others, scaled.

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
        if self.scaling is not None and self.conformal is not None:
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(check_seed(seed)))
            first, rest = order.tensor_split([int(self.scaling_share * len(y))])
            if len(first) == 0:
                raise InvalidInputError(f"{len(y)} held-out rows are too few for a scaling and a conformal step.")
        if self.scaling is not None:
            self.scaling.fit(p[first], y[first])
        if self.conformal is not None:
            self.conformal.fit(self(p[rest]), y[rest])
        return self

    def __call__(self, p: Any) -> Any:
        """The scaled prediction; `p` itself without a scaling."""
        return p if self.scaling is None else self.scaling(p)

    def sets(self, p: Any, alpha: float = 0.1) -> Tensor:
        """The classes in the set of each input, (n, classes): True is in it.

        Args:
            p: Predictions of the method, before scaling.
            alpha: The largest chance that a set misses the label.
        """
        if not isinstance(self.conformal, ConformalSets):
            raise InvalidInputError("this calibration makes no prediction sets: its last step must be LAC() or APS().")
        return self.conformal.sets(self(p), alpha)

    def intervals(self, p: Any, alpha: float = 0.1) -> Intervals:
        """The interval of each input and target; a target on the edge is inside.

        Args:
            p: Predictions of the method, before scaling.
            alpha: The largest chance that an interval misses the target.
        """
        if not isinstance(self.conformal, ConformalIntervals):
            raise InvalidInputError("this calibration makes no intervals: its last step must be ConformalIntervals().")
        return self.conformal.intervals(self(p), alpha)


class Calibrated(Composite):
    """A trained method whose predictions are scaled, with its sets or intervals. `fsvi.load` reads what `save` writes.

    Sets and intervals always use the draws that the calibration was fitted with: `num_samples` and `seed` fix them.
    Other draws would be another predictor, for which nothing is guaranteed. Predictions use them unless told otherwise.

    Args:
        method: The trained method.
        calibration: Its calibration, fitted on `method.predict(x, num_samples, seed)` for held-out inputs `x`.
        num_samples: Draws per prediction.
        seed: Seed of the draws.
    """

    def __init__(self, method: Method, calibration: Calibration, num_samples: int = 100, seed: int = 0) -> None:
        nn.Module.__init__(self)
        check_type("method", method, Method, "a trained method such as fsvi.FSVI(...)")
        check_type("calibration", calibration, Calibration, "a fitted Calibration")
        self.method = method
        self.calibration = calibration
        self.num_samples = check_draws(check_count("num_samples", num_samples))
        self.seed = check_seed(seed)
        self.num_data, self.input_shape = method.num_data, method.input_shape

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
        """Calibrate a trained method by these steps on held-out inputs `x` and targets `y`; see `Calibration.fit`."""
        return cls(method, Calibration(steps).fit(method.predict(x, num_samples, seed), y), num_samples, seed)

    def sets(self, x: Any, alpha: float = 0.1, batch_size: int = 512) -> Tensor:
        """The classes in the sets of inputs `x`; see `Calibration.sets` and `Method.predict`."""
        return self.calibration.sets(self.method.predict(x, self.num_samples, self.seed, batch_size), alpha)

    def intervals(self, x: Any, alpha: float = 0.1, batch_size: int = 512) -> Intervals:
        """The intervals of targets at inputs `x`; see `Calibration.intervals` and `Method.predict`."""
        return self.calibration.intervals(self.method.predict(x, self.num_samples, self.seed, batch_size), alpha)

    def predictive(self, f: Tensor) -> Predictive:
        """The method's prediction, scaled."""
        p: Predictive = self.calibration(self.method.predictive(f))
        return p

    def predict(
        self,
        x: Any,
        num_samples: int | None = None,
        seed: int | None = None,
        batch_size: int = 512,
        summary: bool = False,
    ) -> Predictive:
        """The scaled prediction; see `Method.predict`."""
        return super().predict(x, *self._sampling(num_samples, seed), batch_size, summary)

    def predict_batches(
        self,
        loader: Any,
        num_samples: int | None = None,
        seed: int | None = None,
        batch_size: int = 512,
        summary: bool = False,
    ) -> Iterator[Predictive]:
        """One scaled prediction per batch; see `Method.predict_batches`."""
        return super().predict_batches(loader, *self._sampling(num_samples, seed), batch_size, summary)

    def export(
        self,
        path: str | os.PathLike[str],
        num_samples: int | None = None,
        seed: int | None = None,
        example: Any = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Write the scaled prediction as one graph; see `Method.export`. Sets and intervals are not part of it."""
        super().export(path, *self._sampling(num_samples, seed), example, labels)

    def _sampling(self, num_samples: int | None, seed: int | None) -> tuple[int, int]:
        return self.num_samples if num_samples is None else num_samples, self.seed if seed is None else seed

    def learners(self) -> list[Method]:
        """Those of the method."""
        return self.method.learners()

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The terms of the method's loss."""
        return self.method.forward(x, y)

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """The method's draws."""
        return self.method.functions(num_samples, generator)

    def _values(self, x: Any, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        return self.method._values(x, num_samples, generator, batch_size)

    @classmethod
    def _from_settings(cls, settings: Mapping[str, Any], **transient: Any) -> Calibrated:
        method = Configurable.from_config(settings["method"], **transient)
        calibration = Configurable.from_config(settings["calibration"])
        return cls(method, calibration, settings["num_samples"], settings["seed"])
