"""The page about other libraries says what was measured."""

import re
from pathlib import Path

import pytest

from paper.bench.peer_page import growth_chart, peer_page
from paper.records import read_document

DOCS = Path(__file__).parents[3] / "docs" / "peers"
MACHINE = {"machine": {"fsvi": "1", "torch": "2", "threads": 2, "cpu": "AVX2"}, "quick": False}
STEP = {"network": "cnn", "batch_size": 128, "num_parameters": 421_642, "channels_last": True}


def spread(value):
    return {"median": value, "low": value, "high": value}


def step(method, ratio, num_context=0, limit=None):
    costs = {"ms": spread(10 * ratio), "ratio": spread(ratio), "memory_ratio": 2 * ratio}
    return {**STEP, "method": method, "num_context": num_context, "limit": limit, **costs}


def section(mfvi, theirs):
    steps = [step("plain", 1.0), step("jvp", 1.9, 32, 1.75), step("mfvi", mfvi), step("bayesian-torch", theirs)]
    missing = {"ivon-opt": "ivon-opt is not installed."}
    versions = {"bayesian-torch": "0.5", "ivon-opt": None}
    return {**MACHINE, "rounds": 100, "versions": versions, "rows": steps, "missing": missing}


def points(*methods, memory=1.5):
    costs = {"ratio": spread(1.2), "ms": spread(1.0), "memory_ratio": memory}
    return [{"method": method, "size": size, **costs} for method in methods for size in (100, 200)]


def row(page, title):
    return next(line for line in page.splitlines() if title in line)


def test_a_library_that_is_ahead_says_what_differs():
    ahead, behind = (row(peer_page({"cnn": section(1.2, ratio)}), "dnn_to_bnn") for ratio in (1.1, 1.3))
    assert "1.10" in ahead and "Ahead of fsvi's 1.20. It computes the same loss" in ahead
    assert "1.30" in behind and "Ahead" not in behind


def test_rows_have_ratios_memory_limits_and_reasons():
    page = peer_page({"cnn": section(1.2, 1.1)})
    assert "1.90 ±0.00 | 3.80 | K context points on top: 1.75 by counting passes." in row(page, "`jvp`")
    assert "| – | – | – | ivon-opt is not installed." in row(page, "| IVON")
    assert "421,642 parameters, B 128, K 32 (100 rounds)" in page
    assert "bayesian-torch 0.5" in page and "ivon-opt None" not in page


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    growth = {**MACHINE, "rounds": 3, "points": points("jvp", "conditional", "last_layer")}
    costs = {"network": "cnn", "num_inputs": 9, "ms": spread(1.0), "ratio": spread(1.0)}
    methods = (("forward", 1), ("last_layer", 100), ("laplace-torch kron", 1))
    rows = [{"method": method, "num_samples": num, **costs} for method, num in methods]
    missing = {"laplace-torch diag": "laplace-torch is not installed."}
    predictions = {**MACHINE, "rounds": 5, "versions": {}, "rows": rows, "missing": missing}
    page = peer_page({"cnn": section(1.2, 1.1), "cnn predictions": predictions, "width": growth})
    tables = re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "FSVI, last layer, 100 draws" in page


@pytest.mark.parametrize("memory", [1.5, 90.0])
def test_a_chart_has_lines_for_time_and_memory(memory):
    chart = growth_chart("width", points("jvp", "conditional", "last_layer", memory=memory))
    assert [line.style.dash for line in chart.lines] == ["solid", "dashed"] * 3
    assert [line.label for line in chart.lines[::2]] == ["FSVI, jvp", "FSVI, conditional", "FSVI, last layer"]
    assert chart.y.logarithmic == (memory > 20) and b"hidden" not in chart.svg


def test_the_page_of_the_documentation_is_up_to_date():
    page = peer_page(read_document(DOCS / "peers.json"))
    assert page == (DOCS / "index.md").read_text("utf-8"), "run `fsvi bench --peers --out docs/peers`, which writes it"
