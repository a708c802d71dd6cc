from dataclasses import replace

import pytest

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.experiments import sweeps
from fsvi.experiments.experiment import Order
from fsvi.experiments.sweeps import SWEEPS, reproduce, run_group
from fsvi.experiments.tasks.registry import TASKS
from fsvi.methods.registry import METHODS
from made_results import make_result


def test_every_sweep_is_of_tasks_and_methods_that_exist():
    for name in [*SWEEPS, "all"]:
        orders = list(sweeps._orders(name, [], None, "paper"))
        assert orders and all(order.task in TASKS for order in orders)


def test_only_some_sweeps_have_runs_for_desktops():
    orders = list(sweeps._orders("all", [], 1, "desk"))
    assert {order.task for order in orders} == {"cifar10", "retina"}
    rows = {(order.method, order.context) for order in orders if order.task == "cifar10"}
    assert {("map", None), ("fsvi", "monochrome"), ("fsvi", "corrupted"), ("ensemble:map", None)} <= rows
    with pytest.raises(InvalidInputError, match=r"uci.*'desk'.*table2 and retina"):
        list(sweeps._orders("uci", [], None, "desk"))


@pytest.fixture
def ran(monkeypatch):
    orders = []
    monkeypatch.setattr(sweeps, "run", lambda order, out, tell, device=None: orders.append(order) or make_result())
    monkeypatch.setattr(sweeps, "run_stacked", lambda group, out, tell, device=None: orders.append(group) or [])
    return orders


def test_methods_and_seeds_can_be_chosen(ran, tmp_path):
    reproduce("table1", tmp_path, ["map", "fsvi"], seeds=2, profile="quick", tell=lambda _: None)
    assert [(order.method, order.context, order.seed) for order in ran] == [
        ("map", None, 0),
        ("fsvi", "monochrome", 0),
        ("fsvi", "kmnist", 0),
        ("map", None, 1),
        ("fsvi", "monochrome", 1),
        ("fsvi", "kmnist", 1),
    ]
    assert all(order.profile == "quick" for order in ran)


def test_the_paper_says_how_many_seeds(ran, tmp_path):
    reproduce("uci", tmp_path, ["map"], tell=lambda _: None)
    assert len(ran) == 6 and all([order.seed for order in group] == list(range(10)) for group in ran)


def test_what_cannot_be_trained_together_is_run_alone(ran, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "fbnn", replace(METHODS["fbnn"], can_stack=False))
    reproduce("uci", tmp_path, ["fbnn"], seeds=2, tell=lambda _: None)
    assert len(ran) == 6 * 2 and {order.method for order in ran} == {"fbnn"}


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_number_of_seeds_that_is_none_is_refused(ran, tmp_path, seeds):
    with pytest.raises(InvalidInputError, match=f"seeds={seeds}"):
        reproduce("toy", tmp_path, seeds=seeds)
    assert not ran


def test_one_failure_does_not_stop_the_others(monkeypatch, tmp_path):
    tried = []

    def fail_once(order, out, tell, device=None):
        tried.append(order)
        if len(tried) == 1:
            raise FSVIError("no data.")

    monkeypatch.setattr(sweeps, "run", fail_once)
    said = []
    with pytest.raises(FSVIError, match="no data"):
        reproduce("rotated", tmp_path, tell=said.append)
    assert len(tried) == 4 and any("no data." in line for line in said)


@pytest.mark.parametrize(
    ("name", "methods", "said"),
    [("tabel1", [], "'table1'"), ("table1", ["mfiv"], "did you mean 'mfvi'")],
)
def test_unknown_names_are_refused(ran, tmp_path, name, methods, said):
    with pytest.raises(InvalidInputError, match=said):
        reproduce(name, tmp_path, methods)
    assert not ran


def test_seeds_can_be_named(ran, tmp_path):
    reproduce("toy", tmp_path, ["mfvi"], seeds=[7, 3], tell=lambda _: None)
    assert [order.seed for order in ran] == [7] * 4 + [3] * 4


def test_several_processes_find_what_one_finds(tmp_path):
    """The results of one task, so that it does not take long; the lines say what was found."""
    order = Order("oat1d", "mfvi", "smoke")
    said: list[str] = []
    (alone,) = run_group([order], tmp_path / "one", lambda _: None)
    (found,) = sweeps._reproduce_at_once([[order]], tmp_path / "two", said.append, workers=2, device=None)
    assert found.metrics == pytest.approx(dict(alone.metrics), rel=1e-4)
    assert said[0].startswith("[1/1] oat1d mfvi, smoke, seed 0: ") and "RMSE" in said[0]


def test_failures_in_other_processes_are_reported(tmp_path, monkeypatch):
    jobs = [([Order("oat1d", "mfvi", seed=seed)], tmp_path, None) for seed in (0, 1)]
    made = make_result(task="oat1d", metrics={"rmse": 0.5})
    monkeypatch.setattr(sweeps, "each_finished", lambda *_: zip(jobs, [FSVIError("no data."), [made]], strict=True))
    said: list[str] = []
    with pytest.raises(FSVIError, match="1 of the runs failed"):
        sweeps._reproduce_at_once([group for group, *_ in jobs], tmp_path, said.append, workers=2, device=None)
    assert said[0].endswith("seed 0: failed: no data.") and said[1].endswith("RMSE 0.500")
