"""Ranges and choices that `fsvi tune` searches."""

import optuna
import pytest

from paper.methods import Choice, Range


@pytest.mark.parametrize(
    ("choices", "value", "held"),
    [
        (Choice((4, 8)), 6, Choice((4, 6, 8))),
        (Choice(("jvp", "exact")), "exact", Choice(("jvp", "exact"))),
        (Choice((1, 5)), None, Choice((1, 5))),
        (Range(0.1, 1.0), 2, Range(0.1, 2)),
        (Range(0.1, 1.0), 0.01, Range(0.01, 1.0)),
        (Range(0.1, 1.0), 0.0, Range(0.1, 1.0)),
        (Range(0.1, 1.0, linear=True), 0.0, Range(0.0, 1.0, linear=True)),
        (Range(0.1, 1.0), None, Range(0.1, 1.0)),
    ],
)
def test_a_space_widens_to_hold_a_value(choices, value, held):
    assert choices.holding(value) == held


@pytest.mark.parametrize(
    ("choices", "inside", "outside"),
    [(Range(0.1, 1.0), [0.1, 0.5, 1], [0.09, 2, None, "0.5"]), (Choice((4, "jvp")), [4, "jvp"], [5, None])],
)
def test_membership(choices, inside, outside):
    assert all(map(choices.has, inside)) and not any(map(choices.has, outside))


@pytest.mark.parametrize("linear", [True, False])
def test_suggestions_are_in_the_range_on_its_scale(linear):
    """The same random numbers: half of them are below the middle of the scale, 0.5005 or 10^-1.5."""
    space = Range(1e-3, 1.0, linear=linear)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    values = [space.suggest(study.ask(), "rate") for _ in range(100)]
    middle = 0.5005 if linear else 10**-1.5
    assert all(map(space.has, values)) and 35 < sum(value < middle for value in values) < 65


def test_choices_are_all_suggested():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert {Choice((1, 5)).suggest(study.ask(), "num") for _ in range(30)} == {1, 5}
