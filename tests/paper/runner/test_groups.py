"""Runs that another process is making, and memory."""

import threading
from contextlib import ExitStack

import pytest

from fsvi.errors import FSVIError
from made_results import make_result
from paper.experiment import Order
from paper.records import result_path, write_result
from paper.runner import groups as runner
from paper.runner.groups import describe, each_made, memory_of
from paper.runner.locks import alone

ORDERS = [Order("oat1d", "map", seed=seed) for seed in range(3)]


@pytest.fixture
def ran(monkeypatch):
    """Runs that only write a result, unless another process holds the lock."""
    orders = []

    def run(order, out, *_):
        path = result_path(out, order)
        if not path.exists():
            with alone(out, path):
                orders.append(order.seed)
                write_result(path, make_result(order.method, seed=order.seed, task=order.task))
        return make_result(order.method, seed=order.seed, task=order.task)

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "_POLL", 0.01)
    return orders


@pytest.mark.parametrize("succeeds", [True, False])
def test_what_another_process_makes_is_waited_for(ran, tmp_path, succeeds):
    """If it ends without a result, the run is made here. Nothing is made twice."""
    path = result_path(tmp_path, ORDERS[0])
    said, found, lock = [], [], ExitStack()
    lock.enter_context(alone(tmp_path, path))

    def end():
        if succeeds:
            write_result(path, make_result("map", seed=0, task="oat1d"))
        lock.close()

    def tell(text):
        said.append(text)
        threading.Timer(0.1, end).start()

    for group, outcome in each_made([[order] for order in ORDERS], tmp_path, None, tell):
        assert not isinstance(outcome, FSVIError)
        found.append(group[0].seed)
    assert found == [1, 2, 0] and said == ["Waiting for another process that makes oat1d map, paper, seed 0."]
    assert ran == ([1, 2] if succeeds else [1, 2, 0])


def test_groups_are_described():
    assert describe(ORDERS) == "oat1d map, paper, seeds 0 to 2"
    assert (
        describe([Order("fashion-mnist", "fsvi", "quick", 4, "kmnist")]) == "fashion-mnist fsvi (kmnist), quick, seed 4"
    )


def test_memory_is_that_of_the_largest_group(monkeypatch):
    empty = runner._EMPTY_PROCESSES
    one, three = memory_of([ORDERS[:1]]), memory_of([ORDERS])
    assert empty < one < three < empty + 10**7
    assert memory_of([ORDERS[:1], [Order("oat1d", "ensemble:map")]]) > one
    monkeypatch.setattr(runner, "estimate_cost", raising)
    assert memory_of([]) == 0 == memory_of([ORDERS]), "the run itself says what is wrong"


def raising(*_):
    raise FSVIError("no data.")
