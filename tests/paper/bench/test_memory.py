"""Memory of a step."""

from __future__ import annotations

import pytest

from paper.bench.memory import Memory, step_memory
from paper.bench.steps import BenchStep


def test_memory_counts_parameters_gradients_and_the_optimizers_state() -> None:
    step = BenchStep("mlp 2000-2000", "map", 2, 0)
    vectors = 4 * step.num_parameters * 4 / 2**20
    memory = step_memory(step)
    assert vectors * 0.95 < memory.added < vectors * 2.5
    assert memory.total > memory.added


def test_memory_is_the_median_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Memory(9.0, 5.0), Memory(1.0, 7.0), Memory(4.0, 6.0)])
    monkeypatch.setattr("paper.bench.memory._in_process", lambda step: next(found))
    assert step_memory(BenchStep("cnn", "map", 2, 0), repeats=3) == Memory(4.0, 6.0)
