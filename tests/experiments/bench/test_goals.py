"""Goals and their bounds."""

from __future__ import annotations

from dataclasses import replace

from fsvi.experiments.bench.goals import Goal, find_goals
from fsvi.experiments.bench.memory import Memory
from fsvi.experiments.bench.step_costs import PredictionCost, StepCost
from fsvi.experiments.bench.steps import BenchStep
from fsvi.experiments.bench.timing import Spread


def _spread(value: float) -> Spread:
    return Spread(value, value, value)


def test_goals_compare_with_their_bounds() -> None:
    assert Goal("a ratio", 1.9, 1.9).met
    assert not Goal("a ratio", 1.91, 1.9).met
    assert Goal("a gain", 1.3, 1.3, at_least=True).met
    assert not Goal("a gain", 1.29, 1.3, at_least=True).met


def test_goals_are_found_among_the_costs() -> None:
    step = BenchStep("cnn", "jvp", 128, 32)
    on_cnn = StepCost(step, _spread(80.0), _spread(1.8), _spread(1.4), Memory(400.0, 60.0), 3.0)
    others = [
        replace(on_cnn, step=replace(step, channels_last=False), layout_gain=None),
        replace(on_cnn, step=replace(step, network="resnet18"), memory_ratio=2.5),
        replace(on_cnn, step=step.plain),
    ]
    predictions = [PredictionCost(name, 100, 10, _spread(1.0), _spread(1.2)) for name in ("all", "last_layer")]
    goals = find_goals([on_cnn, *others], predictions)
    assert [(goal.value, goal.bound, goal.met) for goal in goals] == [
        (1.8, 1.9, True),
        (1.4, 1.3, True),
        (2.5, 2.0, False),
        (1.2, 1.3, True),
    ]
