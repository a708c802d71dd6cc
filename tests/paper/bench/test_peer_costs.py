"""fsvi next to other libraries, which are made up here."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paper.bench import peer_costs, peers, predictions, run_peer_bench, steps
from paper.bench.benchmark import Case
from paper.bench.by_hand import plain_forward, plain_step
from paper.bench.growth import GROWTHS
from paper.bench.memory import Memory
from paper.bench.peer_costs import PeerPlan
from paper.bench.peers import Peer
from paper.records import read_document

TINY = PeerPlan(
    cases=(Case("mlp 100", 4, 2, rounds=1),),
    memory_repeats=1,
    predicting=("mlp 100",),
    num_inputs=5,
    prediction_rounds=1,
    growth_rounds=1,
    most_sizes=2,
)


def broken(work):
    raise ValueError("layers of this kind are unknown.\nSee the manual.")


def with_context(work):
    assert len(work.points()) == work.num_context == 2
    return plain_step(work)


WORKING = Peer("torch", "torch", "plain", "mfvi", "It draws nothing.", plain_step)
LIBRARIES = {
    "working": WORKING,
    "missing": replace(WORKING, library="absent-library", module="absent_library"),
    "broken": replace(WORKING, library="broken-library", make=broken),
    "with context": replace(WORKING, against="last_layer", make=with_context),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_costs, "QUICK", TINY)
        patch.setattr("paper.bench.step_costs.step_memory", lambda step, repeats: Memory(300.0, 50.0))
        for place in (peers, steps):
            patch.setattr(place, "STEPS", LIBRARIES)
        for place in (peers, predictions):
            patch.setattr(place, "PREDICTIONS", {"passes": replace(WORKING, make=plain_forward)})
        run_peer_bench(folder, quick=True, only="mlp 100,mlp 100 predictions,width,draws")
    return folder


def test_steps_and_predictions_of_both_are_measured(out: Path) -> None:
    sections = read_document(out / "peers.json")
    trained, predicted = (sections[name]["rows"] for name in ("mlp 100", "mlp 100 predictions"))
    ours = ["plain", "jvp", "conditional", "last_layer", "map", "mfvi", "ivon", "mc_dropout"]
    assert [row["method"] for row in trained] == [*ours, "working", "with context"]
    assert {row["method"]: row["num_context"] for row in trained[-2:]} == {"working": 0, "with context": 2}
    assert {row["method"] for row in predicted} >= {"forward", "last_layer", "laplace", "passes"}
    dropout = {row["network"] for row in predicted if row["method"] == "mc_dropout"}
    assert dropout == {"mlp 100 with dropout"}


def test_libraries_that_cannot_be_measured_have_a_sentence(out: Path) -> None:
    section = read_document(out / "peers.json")["mlp 100"]
    assert section["missing"] == {
        "missing": "absent-library is not installed.",
        "broken": "broken-library fails on this network: layers of this kind are unknown.",
    }


def test_the_page_and_the_plots_are_written(out: Path) -> None:
    page = (out / "index.md").read_text("utf-8")
    pictures = re.findall(r"\]\((\w+\.svg)\)", page)
    assert pictures == ["width.svg", "draws.svg"]
    assert all((out / name).read_bytes().startswith(b"<?xml") for name in pictures)


def test_sections_are_networks_and_growths() -> None:
    names = list(peer_costs._sections(TINY, peer_costs.make_console()))
    assert names == ["mlp 100", "mlp 100 predictions", *GROWTHS]
