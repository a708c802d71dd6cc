"""Learning-rate schedules that recipes use besides those of `fsvi.fit`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AveragingSchedule:
    """SWAG's schedule: high at first, then a linear descent, then constant while parameters are collected.

    As in the code of SWAG's authors (Maddox et al., 2019), the descent lasts from 50% to 90% of the time before
    collection starts. A rate that kept falling would collect nearly the same network again and again.

    Args:
        start: The fraction of training after which SWAG collects parameters.
        final: The learning rate during collection, as a factor of the initial one.
    """

    start: float = 0.5
    final: float = 0.5

    def __call__(self, done: float) -> float:
        """The factor on the learning rate when the fraction `done` of training is done."""
        if self.start == 0.0:
            return self.final
        descended = (done / self.start - 0.5) / 0.4
        return 1.0 - (1.0 - self.final) * min(max(descended, 0.0), 1.0)


@dataclass(frozen=True)
class TriangularSchedule:
    """Rises linearly to the full learning rate, then falls linearly: a short training at a high rate.

    Args:
        first: The factor at the start.
        peak: The fraction of training after which the factor is 1.
        final: The factor at the end.
    """

    first: float = 0.2
    peak: float = 0.23
    final: float = 0.01

    def __call__(self, done: float) -> float:
        """The factor on the learning rate when the fraction `done` of training is done."""
        if done < self.peak:
            return self.first + (1.0 - self.first) * done / self.peak
        return 1.0 - (1.0 - self.final) * min(1.0, (done - self.peak) / (1.0 - self.peak))
