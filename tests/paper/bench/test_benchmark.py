"""The benchmark as a whole, at a tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fsvi
from paper.bench import benchmark, run_bench
from paper.bench.benchmark import Case, Plan
from paper.bench.memory import Memory
from paper.bench.steps import FSVI_METHODS
from paper.records import read_document

TINY = Plan(
    cases=(Case("cnn", 4, 2, rounds=1, both_layouts=True), Case("transformer", 4, 2, rounds=1)),
    jacobian=Case("mlp 100", 4, 2, rounds=1),
    memory_repeats=1,
    networks=(Case("mlp 100", 4, 2, rounds=1),),
    context=Case("mlp 100", 4, 2, rounds=1),
    context_sizes=(2, 4),
    draws=(("conditional", 2), ("last_layer", 3)),
    num_images=5,
    prediction_rounds=1,
)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("bench") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "QUICK", TINY)
        patch.setattr("paper.bench.step_costs.step_memory", lambda step, repeats: Memory(300.0, 50.0))
        run_bench(out, quick=True)
    return read_document(out / "bench.json")


def test_bench_writes_every_section(document: dict) -> None:
    assert all(section["quick"] is True for section in document.values())
    assert all(section["machine"]["threads"] == torch.get_num_threads() for section in document.values())
    measured = {(row["method"], row["channels_last"]) for row in document["cnn"]["rows"]}
    assert measured == {(name, layout) for name in ("plain", "map", *FSVI_METHODS) for layout in (True, False)}
    assert {row["method"] for row in document["transformer"]["rows"]} == {"plain", "map", *FSVI_METHODS}
    assert {row["method"] for row in document["jacobian"]["rows"]} == {"plain", "jacobian"}
    sizes = {(row["method"], row["num_context"]) for row in document["context"]["rows"]}
    assert sizes == {("plain", 0), *((name, size) for name in FSVI_METHODS for size in (2, 4))}
    draws = [(row["method"], row["num_samples"]) for row in document["predictions"]["rows"]]
    assert draws == [("forward", 1), ("conditional", 2), ("last_layer", 3)]
    assert [len(document[name]["goals"]) for name in ("cnn", "transformer", "predictions")] == [6, 3, 1]


def test_bench_ratios_are_positive_and_those_of_plain_steps_are_one(document: dict) -> None:
    rows = [row for section in document.values() for row in section["rows"]]
    for row in rows:
        assert 0 < row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
        assert row["ms"]["median"] > 0
    assert all(row["ratio"]["median"] == 1.0 for row in rows if row["method"] in ("plain", "forward"))
    assert all((row["layout_gain"] is not None) == row["channels_last"] for row in document["cnn"]["rows"])


def test_an_unwritable_folder_is_found_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(benchmark, "measure_steps", lambda *args: pytest.fail("measured too early"))
    with pytest.raises(fsvi.InvalidInputError, match="written"):
        run_bench(tmp_path / "file" / "out", quick=True)
