from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fsvi
from fsvi.experiments.bench import run, run_bench
from fsvi.experiments.bench.costs import PredictionCost, StepCost, measure_steps
from fsvi.experiments.bench.goals import Goal, find_goals
from fsvi.experiments.bench.jacobian import JacobianFSVI
from fsvi.experiments.bench.memory import Memory, step_memory
from fsvi.experiments.bench.run import Case, Plan
from fsvi.experiments.bench.steps import FSVI_METHODS, Step
from fsvi.experiments.bench.timing import Spread, interleave

TINY = Plan(
    cases=(Case("cnn", 4, 2, rounds=1),),
    jacobian=Case("mlp 100", 4, 2, rounds=1),
    memory_repeats=1,
    networks=(Case("mlp 100", 4, 2, rounds=1),),
    context=Case("mlp 100", 4, 2, rounds=1),
    context_sizes=(2, 4),
    draws=(("all", 2), ("last_layer", 3)),
    num_images=5,
    prediction_rounds=1,
)


def _spread(value: float) -> Spread:
    return Spread(value, value, value)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("bench") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "QUICK", TINY)
        patch.setattr("fsvi.experiments.bench.costs.step_memory", lambda step, repeats: Memory(300.0, 50.0))
        run_bench(out, quick=True)
    return json.loads((out / "bench.json").read_text())


def test_bench_writes_every_section(document: dict) -> None:
    assert document["quick"] is True
    assert document["machine"]["threads"] == torch.get_num_threads()
    measured = {(row["method"], row["channels_last"]) for row in document["steps"]}
    assert measured == {(name, layout) for name in ("map", *FSVI_METHODS) for layout in (True, False)}
    assert {row["method"] for row in document["jacobian"]} == {"map", "jacobian"}
    sizes = {(row["method"], row["num_context"]) for row in document["context"]}
    assert sizes == {("map", 0), *((name, size) for name in FSVI_METHODS for size in (2, 4))}
    draws = [(row["method"], row["num_samples"]) for row in document["predictions"]]
    assert draws == [("forward", 1), ("all", 2), ("last_layer", 3)]
    assert len(document["goals"]) == 7


def test_bench_ratios_are_positive_and_map_is_one(document: dict) -> None:
    rows = [row for name in ("steps", "jacobian", "networks", "context") for row in document[name]]
    for row in [*rows, *document["predictions"]]:
        assert 0 < row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
        assert row["ms"]["median"] > 0
    assert all(row["ratio"]["median"] == 1.0 for row in rows if row["method"] == "map")
    assert all((row["layout_gain"] is not None) == row["channels_last"] for row in document["steps"])


@pytest.mark.parametrize(
    ("method", "limit"), [("map", 1.0), ("jvp", 1.75), ("conditional", 1.25), ("last_layer", 1.25), ("jacobian", None)]
)
def test_limits_count_passes(method: str, limit: float | None) -> None:
    step = Step("cnn", method, 128, 32)
    assert (step.plain if method == "map" else step).limit == limit


def test_a_step_trains_what_its_method_says() -> None:
    methods = {name: Step("cnn", name, 4, 2).make_method() for name in ("jvp", "conditional", "last_layer")}
    assert {name: m.linearize for name, m in methods.items() if name != "last_layer"} == {
        "jvp": "jvp",
        "conditional": "conditional",
    }
    assert list(methods["last_layer"].posterior.stds()) == methods["last_layer"].network.head_names
    assert all(m.num_context == 2 for m in methods.values())
    assert Step("cnn", "map", 4, 0).num_parameters == 421_642


def test_rounds_are_interleaved_and_a_turn_begins_with_a_run_that_is_not_counted() -> None:
    calls: list[str] = []
    seconds = interleave({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=4)
    assert calls[::2] == calls[1::2]
    assert [sorted(calls[i : i + 6 : 2]) for i in range(0, 24, 6)] == [["a", "b", "c"]] * 4
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_an_action_is_timed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert interleave({"a": lambda: None}, rounds=2) == {"a": [2.0, 3.0]}


def test_ratios_are_taken_round_by_round() -> None:
    spread = Spread.of_ratio([2.0, 20.0, 300.0], [1.0, 10.0, 100.0])
    assert spread == Spread(median=2.0, low=2.0, high=2.5)


def test_map_steps_are_measured_once_for_all_their_companions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Step] = []

    def record(actions: dict[Step, object], rounds: int) -> dict[Step, list[float]]:
        seen.extend(actions)
        return {step: [4.0 if step.method == "map" else 6.0] for step in actions}

    monkeypatch.setattr("fsvi.experiments.bench.costs.interleave", record)
    costs = measure_steps([Step("mlp 100", "conditional", 4, size) for size in (2, 3)], rounds=1)
    assert [step.method for step in seen] == ["map", "conditional", "conditional"]
    assert [cost.ratio.median for cost in costs] == [1.0, 1.5, 1.5]


def test_jacobian_of_one_output_is_the_exact_linearisation() -> None:
    torch.manual_seed(0)
    net = fsvi.networks.mlp(3, (5,), 1, torch.nn.Tanh).double()
    settings = dict(likelihood=fsvi.Gaussian(), context=fsvi.contexts.Uniform(low=[-1] * 3, high=[1] * 3))
    x = torch.randn(4, 3, dtype=torch.float64)
    exact = fsvi.FSVI(net, linearize="exact", **settings).function_kl(x)
    assert torch.allclose(JacobianFSVI(net, **settings).function_kl(x), exact, rtol=1e-9)


def test_jacobian_sums_over_independent_outputs() -> None:
    torch.manual_seed(0)
    net = fsvi.networks.mlp(3, (), 2).double()
    settings = dict(likelihood=fsvi.Categorical(), context=fsvi.contexts.Uniform(low=[-1] * 3, high=[1] * 3))
    x = torch.randn(4, 3, dtype=torch.float64)
    expected = fsvi.FSVI(net, stochastic="last_layer", **settings).function_kl(x)
    assert torch.allclose(JacobianFSVI(net, **settings).function_kl(x), expected, rtol=1e-9)


def test_memory_counts_parameters_gradients_and_the_optimisers_state() -> None:
    step = Step("mlp 2000-2000", "map", 2, 0)
    vectors = 4 * step.num_parameters * 4 / 2**20
    memory = step_memory(step)
    assert vectors * 0.95 < memory.added < vectors * 2.5
    assert memory.total > memory.added


def test_memory_is_the_median_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Memory(9.0, 5.0), Memory(1.0, 7.0), Memory(4.0, 6.0)])
    monkeypatch.setattr("fsvi.experiments.bench.memory._in_process", lambda step: next(found))
    assert step_memory(Step("cnn", "map", 2, 0), repeats=3) == Memory(4.0, 6.0)


def test_goals_compare_with_their_bounds() -> None:
    assert Goal("a ratio", 1.9, 1.9).met
    assert not Goal("a ratio", 1.91, 1.9).met
    assert Goal("a gain", 1.3, 1.3, at_least=True).met
    assert not Goal("a gain", 1.29, 1.3, at_least=True).met


def test_goals_are_found_among_the_costs() -> None:
    step = Step("cnn", "jvp", 128, 32)
    on_cnn = StepCost(step, _spread(80.0), _spread(1.8), _spread(1.4), Memory(400.0, 60.0), 3.0)
    others = [
        replace(on_cnn, step=replace(step, channels_last=False), layout_gain=None),
        replace(on_cnn, step=replace(step, network="resnet18"), memory_ratio=2.5),
        replace(on_cnn, step=step.plain),
    ]
    predictions = [PredictionCost(name, 100, 10, _spread(1.0), _spread(1.2)) for name in ("all", "last_layer")]
    goals = find_goals([on_cnn, *others], predictions)
    assert [(goal.value, goal.bound, goal.met) for goal in goals] == [
        (1.8, 1.9, True),
        (1.4, 1.3, True),
        (2.5, 2.0, False),
        (1.2, 1.3, True),
    ]


def test_an_unwritable_folder_is_found_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(run, "_measure", lambda plan, console: pytest.fail("measured before looking at the folder"))
    with pytest.raises(fsvi.InvalidInputError, match="written"):
        run_bench(tmp_path / "file" / "out", quick=True)
