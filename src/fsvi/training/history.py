"""What a training run leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class History:
    """What happened, one entry an epoch: the loss and its terms averaged over the epoch's examples, and more."""

    loss: list[float] = field(default_factory=list)
    terms: dict[str, list[float]] = field(default_factory=dict)
    validation: list[float] = field(default_factory=list)
    """mean log-likelihood of the validation set"""
    best_epoch: int | None = None
    """the epoch, from 1, with the best of these; where `patience` was given, its parameters were kept"""
    seconds: float = 0.0

    @property
    def epochs(self) -> int:
        """How many epochs were trained."""
        return len(self.loss)

    @property
    def best_validation(self) -> float | None:
        """The validation log-likelihood of the best epoch."""
        return None if self.best_epoch is None else self.validation[self.best_epoch - 1]

    def latest(self) -> dict[str, float]:
        """The newest values, by name."""
        columns = {"loss": self.loss, **self.terms, "val": self.validation}
        return {name: values[-1] for name, values in columns.items() if values}

    def record(self, means: Mapping[str, float]) -> None:
        """Add an epoch."""
        self.loss.append(sum(means.values()))
        for name, value in means.items():
            self.terms.setdefault(name, []).append(value)
