"""The list of runs."""

from made_results import make_result
from paper.experiment import Order
from paper.records import result_path, write_result
from paper.runner.locks import alone, unfinished
from paper.runner.states import run_state


def test_how_far_runs_are(tmp_path):
    order = Order("oat1d", "map")
    path = result_path(tmp_path, order)

    def state():
        return run_state(order, tmp_path).state

    assert state() == "missing" and not list(tmp_path.iterdir())
    with alone(tmp_path, path):
        assert state() == "running"
    assert state() == "missing"
    unfinished(tmp_path, path).mkdir()
    assert state() == "missing"
    (unfinished(tmp_path, path) / "checkpoint.fsvi").write_bytes(b"")
    assert state() == "interrupted"
    write_result(path, make_result())
    assert state() == "done"


def test_a_state_for_other_programs(tmp_path):
    assert run_state(Order("oat1d", "map", "quick", 3), tmp_path).to_dict() == {
        "task": "oat1d",
        "method": "map",
        "context": None,
        "profile": "quick",
        "seed": 3,
        "state": "missing",
        "result": str(tmp_path / "oat1d" / "map.quick.3.json"),
    }
