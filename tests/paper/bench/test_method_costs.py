"""What methods cost: the tool is tested, never the time."""

import json

import pytest
from rich.console import Console

from fsvi.errors import InvalidInputError
from fsvi.methods.registry import METHODS
from paper.bench.method_costs import ALL, measure_methods, parse_names, run_method_bench


def test_all_names_every_method_and_an_ensemble():
    assert set(parse_names("all")) == {*METHODS, "ensemble:map"} == set(ALL)


def test_names_are_split_at_commas():
    assert parse_names("swag, duq") == ["swag", "duq"]


def test_no_name_is_refused():
    with pytest.raises(InvalidInputError, match="method"):
        parse_names(" , ")


def test_an_unknown_name_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(InvalidInputError, match="did you mean 'swag'"):
        run_method_bench(tmp_path, ["swg"], True, Console(quiet=True))
    assert not (tmp_path / "methods.json").exists()


@pytest.mark.filterwarnings("ignore:SWAG has collected")  # the benchmark trains for a few steps only
def test_plain_pytorch_is_the_unit_and_the_file_holds_every_method(tmp_path):
    costs = run_method_bench(tmp_path, ["laplace", "swag"], True, Console(quiet=True))
    assert [cost.name for cost in costs] == ["plain", "map", "laplace", "swag"]
    assert costs[0].step_ratio.median == costs[0].predict_ratio.median == 1
    assert all(cost.step_ms.median > 0 and cost.predict_ms.median > 0 for cost in costs)
    assert [entry["name"] for entry in json.loads((tmp_path / "methods.json").read_text())] == [c.name for c in costs]


@pytest.mark.parametrize("name", ["vogn", "spg", "ensemble:map"])
def test_methods_with_updates_priors_or_members_of_their_own_are_measured(name):
    assert measure_methods([name], rounds=1, num_images=8, num_samples=2)[-1].name == name
