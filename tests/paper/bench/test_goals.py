"""Goals and their bounds."""

from __future__ import annotations

from dataclasses import replace

from fsvi.methods.registry import METHODS
from paper.bench.goals import Goal, method_goals, prediction_goals, step_goals
from paper.bench.memory import Memory
from paper.bench.predictions import BenchPrediction, PredictionCost
from paper.bench.step_costs import StepCost
from paper.bench.steps import BenchStep
from paper.bench.timing import Spread


def _spread(value: float) -> Spread:
    return Spread(value, value, value)


def test_goals_compare_with_their_bounds() -> None:
    assert Goal("a ratio", 1.9, 1.9).met
    assert not Goal("a ratio", 1.91, 1.9).met
    assert Goal("a gain", 1.3, 1.3, at_least=True).met
    assert not Goal("a gain", 1.29, 1.3, at_least=True).met


def test_goals_of_steps_depend_on_the_network() -> None:
    step = BenchStep("cnn", "jvp", 128, 32)
    on_cnn = StepCost(step, _spread(80.0), _spread(1.8), _spread(1.4), Memory(400.0, 60.0), 3.0)
    others = [
        replace(on_cnn, step=replace(step, channels_last=False), layout_gain=None),
        replace(on_cnn, step=replace(step, network="resnet18", method="last_layer"), layout_gain=None),
        replace(on_cnn, step=replace(step, network="mlp 100"), layout_gain=None),
        replace(on_cnn, step=replace(step, network="mlp 400-400"), layout_gain=None),
        replace(on_cnn, step=step.plain),
    ]
    goals = step_goals([on_cnn, *others])
    assert [(goal.value, goal.bound, goal.met) for goal in goals] == [
        (1.8, 1.8, True),
        (1.4, 1.3, True),
        (1.8, 1.27, False),
        (3.0, 1.7, False),
        (1.8, 2.0, True),
    ]


def test_the_goal_of_predictions_is_for_the_last_layer() -> None:
    costs = [
        PredictionCost(BenchPrediction("cnn", name, 100, 10), _spread(1.0), _spread(1.2))
        for name in ("conditional", "last_layer")
    ]
    assert [(goal.value, goal.bound) for goal in prediction_goals(costs)] == [(1.2, 1.3)]


def test_of_two_methods_with_one_goal_the_better_counts() -> None:
    goals = method_goals({"plain": 1.0, "ivon": 1.05, "vogn": 2.0, "swag": 1.03})
    assert [(goal.value, goal.bound, goal.met) for goal in goals] == [(1.03, 1.02, False), (1.05, 1.1, True)]


def test_every_goal_of_a_method_names_methods_that_exist() -> None:
    goals = method_goals(dict.fromkeys(METHODS, 1.0))
    assert len(goals) == 6 and all(goal.met for goal in goals)
    assert method_goals({"mc-dropout": 1.2})[0].bound == 1.1
