"""Write the table of docs/performance.md from paper/peers/bench.json."""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
BENCH = DOCS.parent / "paper" / "peers" / "bench.json"
NETWORKS = {
    "cnn": "CNN of the paper, B 128, K 32",
    "resnet18": "ResNet-18, B 32, K 8",
    "transformer": "transformer, B 32, K 8",
    "mlp 100": "100 hidden units, B 128, K 32",
}
METHODS = {
    "jvp": "FSVI, all layers (`jvp`)",
    "conditional": "FSVI, all layers (`conditional`)",
    "last_layer": "FSVI, last layer",
    "mfvi": "MFVI",
    "ivon": "IVON",
    "mc-dropout": "MC dropout",
    "map": "MAP",
}


def cell(rows: list[dict[str, Any]], method: str) -> str:
    """Time, then memory, of a method's step in units of plain PyTorch's."""
    found = [row for row in rows if row["method"] == method]
    if not found:
        return "–"
    memory = found[0].get("memory_ratio")
    return f"{found[0]['ratio']['median']:.2f}" + (f" · {memory:.2f}" if memory else "")


def table() -> str:
    """One row per method, one column per network."""
    sections = json.loads(BENCH.read_text("utf-8"))
    lines = ["| step | " + " | ".join(NETWORKS.values()) + " |", "|---|" + "--:|" * len(NETWORKS)]
    for method, name in METHODS.items():
        cells = [cell(sections[network]["rows"], method) for network in NETWORKS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    page = DOCS / "performance.md"
    parts = r"(<!-- costs -->\n).*?(<!-- end -->)"
    page.write_text(
        re.sub(parts, lambda found: found[1] + table() + "\n" + found[2], page.read_text("utf-8"), flags=re.DOTALL)
    )
