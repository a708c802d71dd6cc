"""What `fsvi tune` searches: for each method, which settings, and which values they may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, searched on a logarithmic scale unless `linear`."""

    low: float
    high: float
    linear: bool = False

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial."""
        return trial.suggest_float(name, self.low, self.high, log=not self.linear)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def holding(self, value: Any) -> Range:
        """The range, widened if need be so that it has the value; what is no number on its scale changes nothing."""
        if not isinstance(value, (int, float)) or (value <= 0 and not self.linear):
            return self
        return replace(self, low=min(self.low, value), high=max(self.high, value))


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial."""
        return trial.suggest_categorical(name, self.values)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return value in self.values

    def holding(self, value: Any) -> Choice:
        """The choice with the value among the others, which are sorted, since Optuna tells searches by their order."""
        return self if value is None or self.has(value) else Choice(tuple(sorted((*self.values, value))))


Space = Mapping[str, Range | Choice]

VARIANCE, LENGTH = "prior_variance", "length"
"""Names that are no arguments of a method: of FSVI's prior, and of training."""
_PARAMETER_SPACE: Space = {VARIANCE: Range(1e-3, 10.0), "num_samples": Choice((1, 5))}
SPACES: dict[str, Space] = {
    "fsvi": {
        VARIANCE: Range(0.1, 100.0),
        "num_context": Choice((4, 8, 16, 32, 64)),
        "kl_weight": Range(1e-5, 1e-1),
        "num_samples": Choice((1, 5)),
    },
    "map": {VARIANCE: Range(1e-3, 1e3)},
    "mfvi": _PARAMETER_SPACE,
    "mfvi-tempered": _PARAMETER_SPACE,
    "mfvi-radial": _PARAMETER_SPACE,
    "mc-dropout": {"rate": Range(0.01, 0.5, linear=True)},
}
"""What is searched for each method, and the recipe's own value: its arguments, and the variance of FSVI's prior."""
SMALL_SPACES: dict[str, Space] = {
    "fsvi": {
        "num_context": Choice((8, 16, 32, 64)),
        "num_samples": Choice((1, 4, 16)),
        "linearize": Choice(("jvp", "exact")),
        "stochastic": Choice(("all", "last_layer")),
    },
}
"""What is searched instead, or as well, where networks are so small that seeds are trained together."""
LENGTHS = Choice((0.25, 0.5, 1.0, 2.0))
"""How many times as long as in the recipe such a network may be trained."""
