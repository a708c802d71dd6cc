"""The benchmark as a whole, at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fsvi
from fsvi.experiments.bench import benchmark, run_bench
from fsvi.experiments.bench.benchmark import Case, Plan
from fsvi.experiments.bench.memory import Memory
from fsvi.experiments.bench.steps import FSVI_METHODS

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


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("bench") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "QUICK", TINY)
        patch.setattr("fsvi.experiments.bench.step_costs.step_memory", lambda step, repeats: Memory(300.0, 50.0))
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


def test_an_unwritable_folder_is_found_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(benchmark, "_measure", lambda plan, console: pytest.fail("measured too early"))
    with pytest.raises(fsvi.InvalidInputError, match="written"):
        run_bench(tmp_path / "file" / "out", quick=True)
