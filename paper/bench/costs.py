"""What is measured, and how it is written down: fsvi's own costs, and fsvi next to other libraries."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import fsvi
from fsvi.errors import FileFormatError
from fsvi.methods.registry import METHODS
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import check_choice, first_line
from paper.bench import peers
from paper.bench.measuring import FORWARD, FSVI, PLAIN, Size, costs, step_memory
from paper.records import read_document, write_document

Rows = list[dict[str, Any]]
_SIZES = {
    "cnn": Size("cnn", 128, 32),
    "mlp 100": Size("mlp 100", 128, 32),
    "resnet18": Size("resnet18", 32, 8),
    "transformer": Size("transformer", 32, 8),
}
_GROWTHS: dict[str, tuple[str, dict[int, Size]]] = {
    "width": ("units per layer", {n: Size(f"mlp {n}-{n}", 128, 32) for n in (50, 100, 200, 400, 800, 1600)}),
    "depth": ("hidden layers", {n: Size(f"mlp {'-'.join(['200'] * n)}", 128, 32) for n in (1, 2, 4, 8, 16)}),
    "context": ("context points, K", {n: Size("cnn", 128, n) for n in (4, 8, 16, 32, 64, 128, 256)}),
    "outputs": ("outputs", {n: Size(f"cnn ({n} classes)", 128, 32) for n in (10, 30, 100, 300, 1000)}),
}
"""How costs grow with a size: its name, and what is measured at each value."""
_PREDICTIONS = {"last_layer": 100, "conditional": 10, "mfvi": 10, "mc-dropout": 10, "laplace": 100}
"""fsvi's predictions, and their draws."""
_PEER_STEPS = ("map", "mfvi", "ivon", "mc-dropout", *FSVI)


def run_bench(out: Path, quick: bool, only: str | None = None) -> None:
    """Measure fsvi's steps and predictions, print tables, and write `bench.json`."""
    rounds = 3 if quick else 100
    sections = {name: partial(_steps, size, ("map", *FSVI), rounds, quick) for name, size in _SIZES.items()}
    sections["methods"] = partial(_steps, _SIZES["cnn"], tuple(METHODS), rounds, True)
    sections["predictions"] = partial(_predictions, _SIZES["cnn"], _PREDICTIONS, {}, quick)
    sections |= {name: partial(_growth, name, quick) for name in _GROWTHS}
    _measure(out / "bench.json", sections, only, quick)


def run_peer_bench(out: Path, quick: bool, only: str | None = None) -> None:
    """Measure fsvi next to other libraries; write `peers.json`, plots, and `index.md`, a page of the documentation."""
    rounds = 3 if quick else 100
    sections: dict[str, Callable[[], Rows]] = {}
    for name, size in _SIZES.items():
        usable = [each for each in peers.STEPS if _usable(peers.STEPS[each], partial(size.step, each))]
        sections[name] = partial(_steps, size, (*_PEER_STEPS, *usable), rounds, quick)
    usable = [each for each, peer in peers.PREDICTIONS.items() if peers.why_missing(peer) is None]
    draws = {each: peers.PREDICTIONS[each].num_samples for each in usable}
    sections["predictions"] = partial(_predictions, Size("cnn with dropout", 128, 32), _PREDICTIONS, draws, quick)
    sections |= {name: partial(_growth, name, quick) for name in _GROWTHS}
    found = _measure(out / "peers.json", sections, only, quick)
    for name in (each for each in _GROWTHS if each in found):
        _plot(out / f"{name}.svg", _GROWTHS[name][0], found[name]["rows"])
    write_bytes(out / "index.md", _page(found).encode())


def _usable(peer: peers.Peer, make: Callable[[], Callable[[], Any]]) -> bool:
    """Whether a library is installed and works on the network; it says so if not."""
    missing = peers.why_missing(peer)
    if missing is None:
        try:
            make()()
        except Exception as error:  # other libraries fail in any way
            missing = f"{peer.library} fails on this network: {first_line(error)}."
    if missing is not None:
        print(missing, file=sys.stderr)
    return missing is None


# Sections -----------------------------------------------------------------------------------------------------------


def _steps(size: Size, names: Sequence[str], rounds: int, quick: bool) -> Rows:
    """Times of training steps; memory, too, unless it is to be quick."""
    found = costs({name: size.step(name) for name in (PLAIN, *names)}, PLAIN, rounds)
    rows = [{"what": name, "B": size.batch, "K": size.context, **found[name]} for name in found]
    if not quick:
        memory = {name: step_memory(size, name) for name in found}
        rows = [{**row, "memory MB": round(memory[row["what"]], 1)} for row in rows]
    return rows


def _predictions(size: Size, own: Mapping[str, int], others: Mapping[str, int], quick: bool) -> Rows:
    num, draws = 128 if quick else 1000, {FORWARD: 1, **own, **others}
    actions = {name: size.prediction(name, num, draws[name]) for name in draws}
    found = costs(actions, FORWARD, 3 if quick else 15)
    return [{"what": name, "draws": draws[name], **cost} for name, cost in found.items()]


def _growth(name: str, quick: bool) -> Rows:
    sizes = list(_GROWTHS[name][1].items())[: 2 if quick else None]
    return [
        {"size": value, **row} for value, size in sizes for row in _steps(size, tuple(FSVI), 3 if quick else 15, True)
    ]


def _measure(
    path: Path, sections: Mapping[str, Callable[[], Rows]], only: str | None, quick: bool
) -> dict[str, dict[str, Any]]:
    """Measure sections, print each, and write it as soon as it is measured; others stay in the file as they are."""
    given = list(sections) if only is None else [each.strip() for each in only.split(",")]
    names = [check_choice("only", name, sections) for name in given]
    check_writable(path.parent)
    try:
        found = read_document(path)
    except FileFormatError:
        found = {}
    machine = {"fsvi": fsvi.__version__, "torch": torch.__version__, "platform": platform.platform()}
    for name in names:
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            rows = sections[name]()
        seconds = round(time.perf_counter() - started, 1)
        machine["threads"] = str(torch.get_num_threads())
        found[name] = {"machine": machine, "quick": quick, "seconds": seconds, "rows": rows}
        print(f"{name}\n\n{markdown(rows)}\n")
        write_document(path, found)
    return {name: found[name] for name in sections if name in found}


# Pages --------------------------------------------------------------------------------------------------------------


def markdown(rows: Rows) -> str:
    """Rows as a Markdown table; medians are shown ± half the distance between the quartiles."""

    def text(value: Any) -> str:
        return f"{value['median']:.3g} ± {value['half']:.2g}" if isinstance(value, dict) else str(value)

    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)]]
    lines += [[text(row.get(name, "–")) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _page(found: Mapping[str, Mapping[str, Any]]) -> str:
    parts = [
        "# Next to other libraries",
        "What training steps and predictions cost in fsvi and in other libraries, as ratios to plain PyTorch: a loop "
        "written by hand with `torch.optim`, or one forward pass. Network, batch and process are the same, rounds are "
        "interleaved in random order, and values are medians ± half the interquartile range. Memory is what training "
        "adds to a process. An FSVI step also passes K context points through the network. `python -m paper bench "
        "--peers` writes this page.",
    ]
    for name, section in found.items():
        parts.append(f"## {name.capitalize()}")
        if name in _GROWTHS:
            parts.append(f"![Milliseconds per step by {_GROWTHS[name][0]}]({name}.svg)")
        parts.append(markdown(section["rows"]))
    known = {**peers.STEPS, **peers.PREDICTIONS}
    shown = [row["what"] for section in found.values() for row in section["rows"]]
    parts.append("## What differs")
    parts.append(
        "\n".join(f"- **{known[each].title}**: {known[each].differs}" for each in dict.fromkeys(shown) if each in known)
    )
    return "\n\n".join(parts) + "\n"


def _plot(path: Path, label: str, rows: Rows) -> None:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row["what"] for row in rows):
        points = [(row["size"], row["ms"]["median"]) for row in rows if row["what"] == name]
        axes.loglog(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel=label, ylabel="ms per step")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
