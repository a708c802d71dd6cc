"""How methods are presented: titles, and the score by which their authors rank inputs."""

import pytest

import fsvi
import scenarios
from paper.methods import METHODS, method_title


def test_every_method_of_the_library_is_presented():
    assert set(METHODS) >= set(fsvi.methods.registry.METHODS)


@pytest.mark.parametrize("name", ["map", "duq", "fsvi"])
def test_the_score_is_that_of_the_predictions(name):
    x, _ = scenarios.points()
    method = fsvi.make_method(name, scenarios.dense(), fsvi.Categorical(), context=scenarios.box())
    assert method.predict(x, num_samples=2).score_name == METHODS[name].score


@pytest.mark.parametrize(
    ("name", "title"),
    [("fsvi", "FSVI"), ("ensemble:map", "Deep ensemble"), ("ensemble:fsvi", "FSVI ensemble"), ("unknown", "unknown")],
)
def test_titles(name, title):
    assert method_title(name) == title
