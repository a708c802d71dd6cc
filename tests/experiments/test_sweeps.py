import pytest

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.experiments import sweeps
from fsvi.experiments.sweeps import SWEEPS, reproduce
from fsvi.experiments.tasks.registry import TASKS


def test_every_sweep_is_of_tasks_and_methods_that_exist():
    for name in [*SWEEPS, "all"]:
        orders = list(sweeps._orders(name, [], None, "paper"))
        assert orders and all(order.task in TASKS for order in orders)


@pytest.fixture
def ran(monkeypatch):
    orders = []
    monkeypatch.setattr(sweeps, "run", lambda order, out, tell: orders.append(order))
    monkeypatch.setattr(sweeps, "run_together", lambda group, out, tell: orders.append(group) or [])
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
    monkeypatch.setattr("fsvi.experiments.runner.runs._TOGETHER", ("map",))
    reproduce("uci", tmp_path, ["fbnn"], seeds=2, tell=lambda _: None)
    assert len(ran) == 6 * 2 and {order.method for order in ran} == {"fbnn"}


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_number_of_seeds_that_is_none_is_refused(ran, tmp_path, seeds):
    with pytest.raises(InvalidInputError, match=f"seeds={seeds}"):
        reproduce("toy", tmp_path, seeds=seeds)
    assert not ran


def test_one_failure_does_not_stop_the_others(monkeypatch, tmp_path):
    tried = []

    def fail_once(order, out, tell):
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
