"""Sweeps: which runs they have, and that failures and killed workers cost only their own run."""

import os
import signal
import time
from dataclasses import replace

import pytest

from fsvi.errors import FSVIError, InvalidInputError
from paper.experiment import Order
from paper.runs import run, state
from paper.sweeps import SWEEPS, Workers, plan, reproduce
from paper.tasks.registry import TASKS

pytestmark = pytest.mark.usefixtures("few_predictions")


@pytest.mark.parametrize("name", [*SWEEPS, "all"])
def test_every_sweep_is_of_tasks_and_methods_that_exist(name):
    orders = plan(name)
    assert orders and all(order.task in TASKS for order in orders) and len(set(map(str, orders))) == len(orders)


def test_only_some_sweeps_have_runs_for_desktops():
    orders = plan("all", seeds=1, profile="desk")
    assert {order.task for order in orders} == {"cifar10", "retina"}
    with pytest.raises(InvalidInputError, match=r"uci.*'desk'.*table2 and retina"):
        plan("uci", profile="desk")


def test_methods_and_seeds_can_be_chosen():
    orders = plan("table1", ["map", "fsvi"], seeds=2, profile="quick")
    rows = [("map", None), ("fsvi", "monochrome"), ("fsvi", "kmnist")]
    assert [(o.method, o.context, o.seed) for o in orders] == [(*row, seed) for seed in (0, 1) for row in rows]
    assert len(plan("uci", ["map"])) == 60
    assert [order.seed for order in plan("toy", ["mfvi"], seeds=2)] == [0] * 4 + [1] * 4


def test_bad_choices_are_refused():
    choices = {
        "'table1'": lambda: plan("tabel1"),
        "did you mean 'mfvi'": lambda: plan("table1", ["mfiv"]),
        "seeds=0": lambda: plan("toy", seeds=0),
        "jobs=0": lambda: Workers(0),
        "did you mean 'loky'": lambda: Workers(backend="lokki"),
    }
    for said, make in choices.items():
        with pytest.raises(InvalidInputError, match=said):
            make()


ORDERS = plan("toy", ["mfvi"], profile="smoke")


def test_a_sweep_continues_and_reports_each_run(tmp_path):
    first = run(ORDERS[0], tmp_path, lambda _: None, progress=False)
    said = []
    results = reproduce(ORDERS, tmp_path, said.append)
    assert results[0] == first and len(results) == 4 and said[0] == "1 of 4 runs exist already."
    assert [line.split("]")[0].split(",")[0] for line in said[1:]] == ["[2/4", "[3/4", "[4/4"]
    assert "snelson mfvi, smoke, seed 0" in " ".join(said) and "RMSE" in " ".join(said)
    assert reproduce(ORDERS, tmp_path, said.append) == results or len(results) == 4


def test_a_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    def broken(order):
        raise FSVIError("it is broken")

    monkeypatch.setitem(TASKS, "snelson", replace(TASKS["snelson"], recipe=broken))
    said = []
    with pytest.raises(FSVIError, match=r"1 of 4 runs failed: snelson mfvi, smoke, seed 0\. The others"):
        reproduce(ORDERS, tmp_path, said.append)
    assert sum("it is broken" in line for line in said) == 1
    assert [state(order, tmp_path) for order in ORDERS].count("done") == 3


def killing(order, out, workers):
    """Stands in for making a run in a worker: it kills the process of one task, once another one is done."""
    if order.task == "snelson":
        while state(ORDERS[0], out) != "done":
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return order, run(order, out, lambda _: None, progress=False)


def test_a_killed_worker_costs_only_its_own_run_and_workers_make_the_same_results(tmp_path, monkeypatch):
    monkeypatch.undo()  # workers measure at all points
    (alone,) = reproduce(ORDERS[:1], tmp_path / "alone", lambda _: None, Workers(threads=1))
    monkeypatch.setattr("paper.sweeps._made", killing)
    said = []
    with pytest.raises(FSVIError, match=r"1 of 2 runs failed: snelson"):
        reproduce(ORDERS[:2], tmp_path, said.append, Workers(2, threads=1))
    assert any("A worker was lost" in line for line in said) and any("its process was lost" in line for line in said)
    assert [order.task for order in ORDERS[:2] if state(order, tmp_path) != "done"] == ["snelson"]
    assert replace(run(ORDERS[0], tmp_path, lambda _: None), seconds={}) == replace(alone, seconds={})


def test_runs_of_other_processes_come_last(tmp_path, monkeypatch):
    """Another process makes the first run, and then, before its turn comes, the second."""
    done, said = [], []

    def pretended(order, out):
        is_busy = order == ORDERS[0] or (order == ORDERS[1] and done)
        return "running" if is_busy else state(order, out)

    def made(order, *arguments):
        done.append(order)
        return run(order, *arguments)

    monkeypatch.setattr("paper.sweeps.state", pretended)
    monkeypatch.setattr("paper.sweeps.run", made)
    orders = [ORDERS[0], ORDERS[2], ORDERS[1]]
    assert len(reproduce(orders, tmp_path, said.append)) == 3
    assert done == [ORDERS[2], ORDERS[0], ORDERS[1]]
    assert said[1] == "Waiting for other processes that make 2 runs."


def test_a_backend_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(FSVIError, match="pip install distributed"):
        reproduce([Order("snelson", "map", "smoke")], tmp_path, lambda _: None, Workers(2, "dask"))
