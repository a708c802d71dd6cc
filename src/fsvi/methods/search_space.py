"""The values that a setting of a method may take in a search (`fsvi tune`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds.

    Attributes:
        low: The smallest value.
        high: The largest value.
        linear: Whether to search on a linear scale; the default is a logarithmic one.
    """

    low: float
    high: float
    linear: bool = False

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial.

        Args:
            trial: The trial.
            name: The setting's name in the study.
        """
        return trial.suggest_float(name, self.low, self.high, log=not self.linear)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def holding(self, value: Any) -> Range:
        """The range, widened if necessary to include the value; values that are not on its scale change nothing."""
        if not isinstance(value, (int, float)) or (value <= 0 and not self.linear):
            return self
        return replace(self, low=min(self.low, value), high=max(self.high, value))


@dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        values: The values to choose from.
    """

    values: tuple[Any, ...]

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial.

        Args:
            trial: The trial.
            name: The setting's name in the study.
        """
        return trial.suggest_categorical(name, self.values)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return value in self.values

    def holding(self, value: Any) -> Choice:
        """The choice including the value. Values are sorted, because Optuna tells searches apart by their order."""
        return self if value is None or self.has(value) else Choice(tuple(sorted((*self.values, value))))


Space: TypeAlias = Mapping[str, Range | Choice]
"""Settings by name, with the values that each may take."""

VARIANCE = "prior_variance"
"""The prior's variance: an argument of parameter-space methods, and of the prior that FSVI is given."""
GAMMA = "gamma"
"""γ of the regularized divergence that GFSVI is given."""
