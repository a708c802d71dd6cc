"""The page of the documentation about fsvi and other libraries, and its plots, from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsvi.serialization import write_bytes
from paper.bench import peers
from paper.bench.growth import GROWTHS
from paper.bench.peers import Peer
from paper.bench.predictions import FORWARD
from paper.bench.rendering import show
from paper.bench.steps import FSVI_METHODS, PLAIN
from paper.bench.timing import Spread
from paper.report.line_charts import Axis, Line, LineChart, LineStyle
from paper.report.render import render

_TEMPLATES = Path(__file__).parent / "templates"
_NETWORKS = {
    "cnn": "The paper's CNN",
    "mlp 100": "A dense network with 100 hidden units",
    "resnet18": "ResNet-18",
    "transformer": "A transformer encoder",
}
_TITLES = {
    PLAIN: "maximum likelihood, written by hand",
    FORWARD: "a forward pass",
    "map": "MAP",
    "jvp": "FSVI, `jvp`",
    "conditional": "FSVI, `conditional`",
    "last_layer": "FSVI, last layer",
    "mfvi": "MFVI",
    "ivon": "IVON",
    "mc_dropout": "MC dropout",
    "laplace": "Laplace, last layer, whole curvature",
    "laplace probit": "Laplace, last layer, whole curvature, probit",
}
"""Names of the rows of fsvi and of PyTorch."""


@dataclass(frozen=True)
class Row:
    """A row of a table; costs are empty if they could not be measured.

    Attributes:
        library: The library's name.
        title: What it does.
        ms: Milliseconds.
        ratio: The ratio to plain PyTorch.
        memory: The ratio of memory; None if the table has no such column.
        note: A sentence, or nothing.
    """

    library: str
    title: str
    ms: str
    ratio: str
    memory: str | None
    note: str


def predicting(network: str) -> str:
    """The name of the section about a network's predictions."""
    return f"{network} predictions"


def write_page(out: Path, sections: Mapping[str, Any]) -> None:
    """Write `index.md` and a plot for each section about growth.

    Args:
        out: The folder.
        sections: What was measured.
    """
    for name in GROWTHS:
        if name in sections:
            write_bytes(out / f"{name}.svg", growth_chart(name, sections[name]["points"]).svg)
    write_bytes(out / "index.md", peer_page(sections).encode())


def peer_page(sections: Mapping[str, Any]) -> str:
    """The page as Markdown.

    Args:
        sections: What was measured.
    """
    cases = [_case(name, sections) for name in _NETWORKS if name in sections]
    growths = [_growth(name, sections[name]) for name in GROWTHS if name in sections]
    machines = dict.fromkeys(_machine(section) for section in sections.values())
    return render("peers.md", _TEMPLATES, cases=cases, growths=growths, machines=[*machines, _versions(sections)])


def growth_chart(name: str, points: Sequence[Mapping[str, Any]]) -> LineChart:
    """Costs by size: solid lines for time, dashed ones for memory.

    Args:
        name: A key of `GROWTHS`.
        points: The measured points of the section.
    """
    growth, lines = GROWTHS[name], []
    for number, method in enumerate(growth.methods):
        own = [point for point in points if point["method"] == method]
        sizes, style = [point["size"] for point in own], LineStyle.number(number)
        lines.append(Line(sizes, [point["ratio"]["median"] for point in own], style, label=_plain(_TITLES[method])))
        if own[0].get("memory_ratio") is not None:
            lines.append(Line(sizes, [point["memory_ratio"] for point in own], LineStyle(style.color, "dashed")))
    sizes = sorted({point["size"] for point in points})
    x = Axis(growth.label, sizes[0] * 0.9, sizes[-1] * 1.1, sizes, logarithmic=True)
    spread = max(max(line.y) for line in lines) / min(min(line.y) for line in lines)
    ticks = (1, 3, 10, 30, 100)
    y = Axis("", 0.9, None, ticks, logarithmic=True) if spread > 20 else Axis("", 0.0, None, None)
    return LineChart(growth.title, x, y, lines)


# Tables ---------------------------------------------------------------------------------------------------------------


def _case(name: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    steps, predictions = sections[name], sections.get(predicting(name))
    sizes = next(row for row in steps["rows"] if row["method"] in FSVI_METHODS)
    return {
        "title": _NETWORKS[name],
        "sizes": f"{sizes['num_parameters']:,} parameters, B {sizes['batch_size']}, K {sizes['num_context']} "
        f"({steps['rounds']} rounds):",
        "steps": _rows(steps, peers.STEPS),
        "predictions": None if predictions is None else _rows(predictions, peers.PREDICTIONS),
        "num_inputs": None if predictions is None else predictions["rows"][0]["num_inputs"],
        "prediction_rounds": None if predictions is None else predictions["rounds"],
    }


def _rows(section: Mapping[str, Any], libraries: Mapping[str, Peer]) -> list[Row]:
    measured = section["rows"]
    has_memory = any(row.get("memory_ratio") is not None for row in measured)
    rows = [_row(row, measured, libraries, has_memory) for row in measured]
    empty = "" if has_memory else None
    return rows + [
        Row(_library(libraries[name].library), libraries[name].title, "", "", empty, reason)
        for name, reason in section["missing"].items()
        if name in libraries
    ]


def _row(
    row: Mapping[str, Any], measured: Iterable[Mapping[str, Any]], libraries: Mapping[str, Peer], has_memory: bool
) -> Row:
    method, ratio = row["method"], Spread(**row["ratio"])
    peer = libraries.get(method)
    library = peer.library if peer is not None else "torch" if method in (PLAIN, FORWARD) else "fsvi"
    title = peer.title if peer is not None else _TITLES[method]
    draws = row.get("num_samples", 1)
    return Row(
        library=_library(library),
        title=f"{title}, {draws} draws" if draws > 1 else title,
        ms=f"{row['ms']['median']:.1f}",
        ratio=show(ratio),
        memory=f"{row['memory_ratio']:.2f}" if has_memory else None,
        note=_limit(row) if peer is None else _ahead(peer, ratio, measured),
    )


def _library(name: str) -> str:
    """A library's name for readers."""
    return "PyTorch" if name == "torch" else name


def _limit(row: Mapping[str, Any]) -> str:
    """What counting passes gives for FSVI's steps, which do more than the others."""
    limit = row.get("limit")
    return "" if limit in (None, 1) else f"K context points on top: {limit:.2f} by counting passes."


def _ahead(peer: Peer, ratio: Spread, measured: Iterable[Mapping[str, Any]]) -> str:
    """What differs, if the library is faster than fsvi's row of the same purpose."""
    own = next((row["ratio"]["median"] for row in measured if row["method"] == peer.against), None)
    if own is None or ratio.median >= own:
        return ""
    return f"Ahead of fsvi's {own:.2f}. {peer.differs}"


# Growth ---------------------------------------------------------------------------------------------------------------


def _growth(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    growth, points = GROWTHS[name], section["points"]
    lines = []
    for method in growth.methods:
        own = [point for point in points if point["method"] == method]
        memories = [f"{point['memory_ratio']:.2f}" for point in own if point.get("memory_ratio") is not None]
        ratios = [f"{point['ratio']['median']:.2f}" for point in own]
        lines.append({"title": _TITLES[method], "ratios": ratios, "memories": memories})
    return {
        "title": growth.title,
        "label": growth.label,
        "rounds": section["rounds"],
        "picture": f"{name}.svg",
        "sizes": sorted({point["size"] for point in points}),
        "lines": lines,
    }


# Machine --------------------------------------------------------------------------------------------------------------


def _machine(section: Mapping[str, Any]) -> str:
    machine = section["machine"]
    quick = " with `--quick`: few rounds" if section["quick"] else ""
    return f"fsvi {machine['fsvi']}, torch {machine['torch']}, {machine['threads']} threads, {machine['cpu']}{quick}"


def _versions(sections: Mapping[str, Any]) -> str:
    versions: dict[str, str | None] = {}
    for section in sections.values():
        versions |= section.get("versions", {})
    found = [f"{name} {version}" for name, version in sorted(versions.items()) if version and name != "torch"]
    return ", ".join(found) or "none of the other libraries"


def _plain(text: str) -> str:
    """A title without the marks of Markdown."""
    return text.replace("`", "")
