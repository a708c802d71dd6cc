"""The steps that are measured."""

from __future__ import annotations

import pytest

from paper.bench.steps import BenchStep


@pytest.mark.parametrize(
    ("method", "limit"),
    [("plain", 1.0), ("jvp", 1.75), ("conditional", 1.25), ("last_layer", 1.25), ("jacobian", None)],
)
def test_limits_count_passes(method: str, limit: float | None) -> None:
    step = BenchStep("cnn", method, 128, 32)
    assert (step.plain if method == "plain" else step).limit == limit


def test_a_step_trains_what_its_method_says() -> None:
    methods = {name: BenchStep("cnn", name, 4, 2).make_method() for name in ("jvp", "conditional", "last_layer")}
    assert {name: m.linearize for name, m in methods.items() if name != "last_layer"} == {
        "jvp": "jvp",
        "conditional": "conditional",
    }
    assert list(methods["last_layer"].posterior.stds()) == methods["last_layer"].network.head_names
    assert all(m.num_context == 2 for m in methods.values())
    assert BenchStep("cnn", "map", 4, 0).num_parameters == 421_642
