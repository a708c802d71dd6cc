"""`fsvi bench --peers`: fsvi next to other libraries, with the same network, batch and machine, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from fsvi.validation import first_line
from paper.bench import peers
from paper.bench.benchmark import Case, make_console
from paper.bench.growth import GROWTHS
from paper.bench.peer_page import predicting, write_page
from paper.bench.peers import Peer, why_missing
from paper.bench.predictions import BenchPrediction, measure_predictions
from paper.bench.rendering import prediction_table, step_table
from paper.bench.sections import Section, run_sections
from paper.bench.step_costs import measure_steps
from paper.bench.steps import FSVI_METHODS, NETWORKS, BenchStep, dropping

_OURS = ("map", "mfvi", "ivon", "mc_dropout")
"""Other steps of fsvi."""
_OUR_PREDICTIONS = (
    ("last_layer", 10),
    ("last_layer", 100),
    ("conditional", 10),
    ("mfvi", 10),
    ("mc_dropout", 10),
    ("laplace", 100),
    ("laplace probit", 1),
)

What = TypeVar("What", BenchStep, BenchPrediction)


@dataclass(frozen=True)
class PeerPlan:
    """What to measure, and how often.

    Attributes:
        cases: Networks; their steps are a section each.
        memory_repeats: The number of processes in which memory is measured.
        predicting: The networks whose predictions are a section each, too.
        num_inputs: Inputs per prediction.
        prediction_rounds: The number of measurements of predictions.
        growth_rounds: The number of measurements of each size.
        most_sizes: The number of sizes as costs grow; None for all.
    """

    cases: tuple[Case, ...]
    memory_repeats: int
    predicting: tuple[str, ...]
    num_inputs: int
    prediction_rounds: int
    growth_rounds: int
    most_sizes: int | None = None


FULL = PeerPlan(
    cases=(
        Case("cnn", 128, 32, rounds=100),
        Case("mlp 100", 128, 32, rounds=100),
        Case("resnet18", 32, 8, rounds=20),
        Case("transformer", 32, 8, rounds=100),
    ),
    memory_repeats=3,
    predicting=("cnn", "mlp 100"),
    num_inputs=1000,
    prediction_rounds=15,
    growth_rounds=15,
)
QUICK = PeerPlan(
    cases=(Case("cnn", 128, 32, rounds=5), Case("mlp 100", 128, 32, rounds=10)),
    memory_repeats=1,
    predicting=("cnn", "mlp 100"),
    num_inputs=128,
    prediction_rounds=2,
    growth_rounds=2,
    most_sizes=3,
)


def run_peer_bench(out: Path, quick: bool, only: str | None = None) -> None:
    """Measure, print tables, and write `peers.json`, plots, and `index.md`, a page of the documentation.

    Args:
        out: The folder to write to.
        quick: Whether to make fewer repetitions with smaller sizes.
        only: The sections to measure, separated by commas; None measures all. Others stay as an earlier run left them.
    """
    console = make_console()
    plan = QUICK if quick else FULL
    run_sections(out / "peers.json", _sections(plan, console), only, quick, written=partial(write_page, out))
    console.print(f"Written to {out / 'index.md'}.")


def _sections(plan: PeerPlan, console: Console) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    for case in plan.cases:
        sections[case.network] = partial(_measure_steps, case, plan.memory_repeats, console)
        if case.network in plan.predicting:
            sections[predicting(case.network)] = partial(_measure_predictions, case.network, plan, console)
    for name, growth in GROWTHS.items():
        sections[name] = partial(growth.measure, plan.growth_rounds, plan.most_sizes)
    return sections


def _measure_steps(case: Case, memory_repeats: int, console: Console) -> dict[str, Any]:
    """Steps of fsvi and of the others on one network; sentences for what could not be measured."""
    steps, missing = usable(_steps(case), peers.STEPS)
    costs = measure_steps(steps, case.rounds, memory_repeats)
    console.print(step_table(f"Steps on {case.network}", costs))
    rows = [cost.as_dict() for cost in costs]
    return {"rounds": case.rounds, "versions": _versions(peers.STEPS), "rows": rows, "missing": missing}


def _measure_predictions(network: str, plan: PeerPlan, console: Console) -> dict[str, Any]:
    """Predictions of fsvi and of the others; sentences for what could not be measured."""
    predictions, missing = usable(_predictions(network, plan.num_inputs), peers.PREDICTIONS)
    costs = measure_predictions(predictions, plan.prediction_rounds)
    console.print(prediction_table(f"Predictions of {network}", costs))
    rows = [cost.as_dict() for cost in costs]
    return {
        "rounds": plan.prediction_rounds,
        "versions": _versions(peers.PREDICTIONS),
        "rows": rows,
        "missing": missing,
    }


def _steps(case: Case) -> Iterator[BenchStep]:
    for name in (*FSVI_METHODS, *_OURS, *peers.STEPS):
        purpose = peers.STEPS[name].against if name in peers.STEPS else name
        num_context = case.num_context if purpose in FSVI_METHODS else 0
        yield BenchStep(case.network, name, case.batch_size, num_context)


def _predictions(network: str, num_inputs: int) -> Iterator[BenchPrediction]:
    theirs = [(name, peer.num_samples) for name, peer in peers.PREDICTIONS.items()]
    for name, num_samples in (*_OUR_PREDICTIONS, *theirs):
        purpose = peers.PREDICTIONS[name].against if name in peers.PREDICTIONS else name
        own = dropping(network) if purpose == "mc_dropout" else network
        if own in NETWORKS:
            yield BenchPrediction(own, name, num_samples, num_inputs)


def usable(everything: Iterable[What], libraries: Mapping[str, Peer]) -> tuple[list[What], dict[str, str]]:
    """What can be measured here, and for each of the others a sentence that says why it cannot.

    Args:
        everything: Steps or predictions.
        libraries: The other libraries, by the name of their method.
    """
    working, missing = [], {}
    for each in everything:
        peer = libraries.get(each.method)
        reason = None if peer is None else why_missing(peer) or _failure(each, peer)
        if reason is None:
            working.append(each)
        else:
            missing[each.method] = reason
    return working, missing


def _failure(what: BenchStep | BenchPrediction, peer: Peer) -> str | None:
    """A sentence about the error with which a library fails on the network; None if it works."""
    try:
        what.make_action()()
    except Exception as error:  # other libraries fail in any way
        return f"{peer.library} fails on this network: {first_line(error)}."
    return None


def _versions(libraries: Mapping[str, Peer]) -> dict[str, str | None]:
    """The versions of the libraries that can be used."""
    return {peer.library: peers.version(peer) for peer in libraries.values() if why_missing(peer) is None}
