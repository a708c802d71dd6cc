"""Costs of steps."""

from __future__ import annotations

import pytest

from paper.bench.step_costs import measure_steps
from paper.bench.steps import BenchStep


def test_plain_steps_are_measured_once_for_all_their_companions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BenchStep] = []

    def record(actions: dict[BenchStep, object], rounds: int) -> dict[BenchStep, list[float]]:
        seen.extend(actions)
        return {step: [4.0 if step.method == "plain" else 6.0] for step in actions}

    monkeypatch.setattr("paper.bench.step_costs.interleave", record)
    costs = measure_steps([BenchStep("mlp 100", "conditional", 4, size) for size in (2, 3)], rounds=1)
    assert [step.method for step in seen] == ["plain", "conditional", "conditional"]
    assert [cost.ratio.median for cost in costs] == [1.0, 1.5, 1.5]
