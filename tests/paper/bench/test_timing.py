"""Timing in interleaved rounds."""

from __future__ import annotations

import time

import pytest

from paper.bench.timing import Spread, interleave


def test_rounds_are_interleaved_and_a_turn_begins_with_a_run_that_is_not_counted() -> None:
    calls: list[str] = []
    seconds = interleave({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4)
    assert calls[::2] == calls[1::2]
    assert [sorted(calls[i : i + 6 : 2]) for i in range(0, 24, 6)] == [["a", "b", "c"]] * 4
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_an_action_is_timed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert interleave({"a": lambda: None}, rounds=2) == {"a": [2.0, 3.0]}


def test_ratios_are_taken_round_by_round() -> None:
    spread = Spread.of_ratio([2.0, 20.0, 300.0], [1.0, 10.0, 100.0])
    assert spread == Spread(median=2.0, low=2.0, high=2.5)
