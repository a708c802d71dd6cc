"""The record of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(repr=False)
class History:
    """The record of a training run, with one entry per epoch.

    Attributes:
        loss: The loss, averaged over the epoch's examples.
        terms: The terms of the loss by name, averaged in the same way.
        validation: The mean log-likelihood of the validation data.
        best_epoch: The epoch, from 1, with the best validation log-likelihood. With `patience`, its parameters were
            restored.
        seconds: The training time.
    """

    loss: list[float] = field(default_factory=list)
    terms: dict[str, list[float]] = field(default_factory=dict)
    validation: list[float] = field(default_factory=list)
    best_epoch: int | None = None
    seconds: float = 0.0

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.latest().items())
        return f"History({self.epochs} epochs, {self.seconds:.3g} s{', ' if values else ''}{values})"

    @property
    def epochs(self) -> int:
        """The number of epochs trained."""
        return len(self.loss)

    @property
    def best_validation(self) -> float | None:
        """The validation log-likelihood of the best epoch."""
        return None if self.best_epoch is None else self.validation[self.best_epoch - 1]

    def latest(self) -> dict[str, float]:
        """The newest values, by name."""
        columns = {"loss": self.loss, **self.terms, "val": self.validation}
        return {name: values[-1] for name, values in columns.items() if values}
