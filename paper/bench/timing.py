"""Times of several actions, measured so that they can be compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements, and their quartiles.

    Attributes:
        median: The median.
        low: The lower quartile.
        high: The upper quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of these values."""
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return cls(median, low, high)

    @classmethod
    def of_milliseconds(cls, seconds: Sequence[float]) -> Spread:
        """The spread of these seconds, in milliseconds."""
        return cls.of([1e3 * value for value in seconds])

    @classmethod
    def of_ratio(cls, values: Sequence[float], bases: Sequence[float]) -> Spread:
        """The spread of value / base, round by round, so that slow rounds cancel.

        Args:
            values: One measurement per round.
            bases: The measurement to divide by, in the same rounds.
        """
        return cls.of([value / base for value, base in zip(values, bases, strict=True)])


def interleave(actions: Mapping[Name, Callable[[], Any]], rounds: int) -> dict[Name, list[float]]:
    """The seconds of each action in each round.

    Every round gives all actions a turn, in a new order, so that none owes its time to its place or its moment. A turn
    begins with a run that is not counted: as in training, a step then follows one of its own kind, and finds its memory
    and caches as that one left them.

    Args:
        actions: The actions, by name.
        rounds: The number of rounds.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in actions}
    order = list(actions)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            actions[name]()
            seconds[name].append(_seconds(actions[name]))
    return seconds


def _seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
