"""A trained method with its calibration: one object, one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from fsvi.calibration.calibration import Calibration, Conformal
from fsvi.calibration.intervals import Intervals
from fsvi.calibration.scaling import Scaling
from fsvi.likelihoods import Predictive, gathered
from fsvi.methods.base import Method
from fsvi.methods.exporting import export_method
from fsvi.serialization import Configurable, check_draws
from fsvi.validation import as_tensor, check_count, check_seed, check_type


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

    transient = ("method",)

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
        steps: Sequence[Scaling | Conformal],
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
        check_type("method", method, Method, "a trained method such as fsvi.FSVI(...)")
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
        samples = self.num_samples if num_samples is None else num_samples
        p: Predictive = self.calibration(
            self.method.predict(x, samples, self.seed if seed is None else seed, batch_size)
        )
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
        samples, seed = self.num_samples if num_samples is None else num_samples, self.seed if seed is None else seed
        for p in self.method.predict_batches(loader, samples, seed, batch_size):
            scaled: Predictive = self.calibration(p)
            yield scaled.summary() if summary else scaled

    def sets(self, x: Any, alpha: float = 0.1, batch_size: int = 512) -> Tensor:
        """The classes in the prediction set of each input, (n, classes).

        Args:
            x: Inputs, (n, ...).
            alpha: The largest chance that a set misses the label.
            batch_size: The number of inputs per pass through the network.
        """
        return self.calibration.sets(self._raw(x, batch_size), alpha)

    def intervals(self, x: Any, alpha: float = 0.1, batch_size: int = 512) -> Intervals:
        """The prediction interval of each input and target.

        Args:
            x: Inputs, (n, ...).
            alpha: The largest chance that an interval misses the target.
            batch_size: The number of inputs per pass through the network.
        """
        return self.calibration.intervals(self._raw(x, batch_size), alpha)

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
        samples, seed = self.num_samples if num_samples is None else num_samples, self.seed if seed is None else seed
        export_method(self.method, path, samples, seed, example, labels, self.calibration)

    def _raw(self, x: Any, batch_size: int) -> Predictive:
        return self.method.predict(x, self.num_samples, self.seed, batch_size)

    def __getattr__(self, name: str) -> Any:
        if name == "method":  # not set yet, as while a copy is being made
            raise AttributeError(name)
        return getattr(self.method, name)
