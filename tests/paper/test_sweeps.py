import os
import signal
from collections import Counter
from dataclasses import replace

import pytest

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.methods.registry import METHODS
from fsvi.parallel import Workers
from made_results import make_result
from paper import sweeps
from paper.experiment import Compute, Order
from paper.runner import groups as runner
from paper.sweeps import SWEEPS, Shard, plan, reproduce
from paper.tasks.registry import TASKS


def flat(groups):
    return [order for group in groups for order in group]


@pytest.mark.parametrize("name", [*SWEEPS, "all"])
def test_every_sweep_is_of_tasks_and_methods_that_exist(name):
    orders = flat(plan(name))
    assert orders and all(order.task in TASKS for order in orders)


def test_only_some_sweeps_have_runs_for_desktops():
    orders = flat(plan("all", seeds=1, profile="desk"))
    assert {order.task for order in orders} == {"cifar10", "retina"}
    rows = {(order.method, order.context) for order in orders if order.task == "cifar10"}
    assert {("map", None), ("fsvi", "monochrome"), ("fsvi", "corrupted"), ("ensemble:map", None)} <= rows
    with pytest.raises(InvalidInputError, match=r"uci.*'desk'.*table2 and retina"):
        plan("uci", profile="desk")


def test_methods_and_seeds_can_be_chosen():
    orders = flat(plan("table1", ["map", "fsvi"], seeds=2, profile="quick"))
    assert [(order.method, order.context, order.seed) for order in orders] == [
        ("map", None, 0),
        ("fsvi", "monochrome", 0),
        ("fsvi", "kmnist", 0),
        ("map", None, 1),
        ("fsvi", "monochrome", 1),
        ("fsvi", "kmnist", 1),
    ]
    assert all(order.profile == "quick" for order in orders)


def test_the_paper_says_how_many_seeds():
    groups = plan("uci", ["map"])
    assert len(groups) == 6 and all([order.seed for order in group] == list(range(10)) for group in groups)


def test_what_cannot_be_trained_together_is_run_alone(monkeypatch):
    monkeypatch.setitem(METHODS, "fbnn", replace(METHODS["fbnn"], can_stack=False))
    assert list(map(len, plan("uci", ["fbnn"], seeds=2))) == [1] * 12
    assert list(map(len, plan("uci", ["map"], seeds=2))) == [2] * 6
    assert list(map(len, plan("uci", ["map"], seeds=2, compute=Compute("cuda")))) == [1] * 12


def test_seeds_can_be_named():
    assert [order.seed for order in flat(plan("toy", ["mfvi"], seeds=[7, 3]))] == [7] * 4 + [3] * 4


@pytest.mark.parametrize(
    ("name", "methods", "seeds", "said"),
    [
        ("tabel1", [], 1, "'table1'"),
        ("table1", ["mfiv"], 1, "did you mean 'mfvi'"),
        ("toy", [], 0, "seeds=0"),
        ("toy", [], -1, "seeds=-1"),
    ],
)
def test_bad_choices_are_refused(name, methods, seeds, said):
    with pytest.raises(InvalidInputError, match=said):
        plan(name, methods, seeds)


# Shards -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 5])
def test_every_run_is_in_one_shard(count):
    whole = plan("uci", seeds=2) + plan("table1", seeds=3)
    shares = [Shard(index, count).of(whole) for index in range(1, count + 1)]
    found = [tuple(map(str, group)) for share in shares for group in share]
    assert sorted(found) == sorted(tuple(map(str, group)) for group in whole)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_shards_have_about_the_same_work(count):
    """In the toy sweep, dealing in order would give all runs of FSVI to the first of three shards."""
    whole = plan("toy")
    work = [sum(map(sweeps._expected_cost, Shard(index + 1, count).of(whole))) for index in range(count)]
    assert max(work) - min(work) <= max(map(sweeps._expected_cost, whole))


def test_longer_groups_cost_more():
    """Each seed counts; an ensemble costs five members, and context points double the cost."""
    orders = [Order("oat1d", "map", seed=seed) for seed in range(3)]
    assert sweeps._expected_cost(orders[:1]) == 1 and sweeps._expected_cost(orders) == 3
    costs = {name: sweeps._expected_cost([Order("oat1d", name)]) for name in ("ensemble:map", "fsvi", "ensemble:fsvi")}
    assert costs == {"ensemble:map": 5, "fsvi": 2, "ensemble:fsvi": 10}


def test_long_groups_are_dealt_first_to_whoever_has_the_least():
    """Costs 5, 2, 2 and 1 make two shards of 5: the ensemble alone, and the rest."""
    whole = [[Order("oat1d", name)] for name in ("map", "fsvi", "ensemble:map")] + [[Order("subspace", "fsvi")]]
    methods = [[group[0].method for group in Shard(index, 2).of(whole)] for index in (1, 2)]
    assert methods == [["ensemble:map"], ["fsvi", "fsvi", "map"]]


@pytest.mark.parametrize("text", ["5/4", "0/4", "1", "1/0", "-1/4", "1/4/2", "a/b", "1.0/2", ""])
def test_a_shard_that_does_not_exist_is_refused(text):
    with pytest.raises(InvalidInputError, match="shard="):
        Shard.parse(text)


def test_a_shard_is_parsed():
    assert Shard.parse("2/12") == Shard(2, 12)


# Making them --------------------------------------------------------------------------------------------------------


def test_one_failure_does_not_stop_the_others(monkeypatch, tmp_path):
    tried = []

    def fail_once(order, out, tell, *_):
        tried.append(order)
        if len(tried) == 1:
            raise FSVIError("no data.")
        return make_result()

    monkeypatch.setattr(runner, "run", fail_once)
    said = []
    with pytest.raises(FSVIError, match=r"1 of 4 runs failed: .*seed 0\."):
        reproduce(plan("rotated"), tmp_path, said.append)
    assert len(tried) == 4 and "failed: no data." in said[0] and "1 failed" in said[1]


def test_several_processes_find_what_one_finds_bit_by_bit(tmp_path):
    groups = [[Order("oat1d", "mfvi", "smoke")], [Order("oat1d", "map", "smoke")]]
    said: list[str] = []
    one = reproduce(groups, tmp_path / "one", said.append)
    two = reproduce(groups, tmp_path / "two", said.append, Workers(2))
    by_method = {result.method: result for result in two}
    for result in one:
        other = by_method[result.method]
        assert (other.metrics, other.curves, other.history) == (result.metrics, result.curves, result.history)
        name = f"models/oat1d/{result.method}.smoke.0.fsvi"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert said[0].startswith("[1/2] oat1d mfvi, smoke, seed 0: ") and "RMSE" in said[0]
    said.clear()
    assert len(reproduce(groups, tmp_path / "two", said.append, Workers(2))) == 2
    assert said == ["2 of 2 results exist already."]


def test_a_killed_run_is_named_and_the_others_are_made(tmp_path, monkeypatch):
    def killed(job):
        os.kill(os.getpid(), signal.SIGKILL)

    groups = [[Order("oat1d", "mfvi", "smoke")]]
    monkeypatch.setattr(runner, "_run_silently", killed)
    with pytest.raises(FSVIError, match=r"1 of 1 runs failed: oat1d mfvi, smoke, seed 0\."):
        reproduce(groups, tmp_path, lambda _: None, Workers(1))
    assert len(reproduce(groups, tmp_path, lambda _: None)) == 1


def test_an_unreadable_result_is_a_failure(tmp_path):
    order = Order("oat1d", "mfvi", "smoke")
    path = tmp_path / "oat1d" / "mfvi.smoke.0.json"
    path.parent.mkdir()
    path.write_text("{")
    said = []
    with pytest.raises(FSVIError, match="1 of 1 runs failed"):
        reproduce([[order]], tmp_path, said.append)
    assert "truncated" in said[-1]


def test_rows_have_their_own_numbers_of_seeds_unless_the_command_names_one():
    counts = Counter((order.method, order.context) for group in plan("table1") for order in group)
    assert counts["fsvi", "kmnist"] == 5 and counts["fsvi", "monochrome"] == counts["map", None] == 3
    assert counts["mfvi", None] == counts["ensemble:fsvi", "monochrome"] == 1
    assert {len(list(each)) for each in plan("table1", seeds=2)} == {1}
    assert set(Counter(order.method for group in plan("table1", ["map"], seeds=2) for order in group).values()) == {2}
    assert {order.seed for group in plan("retina", profile="desk") for order in group} == {0, 1, 2}
