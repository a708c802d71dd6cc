"""How far runs are, seen from their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paper.experiment import Order
from paper.records import result_path
from paper.runner.locks import is_being_made, unfinished

State = Literal["done", "running", "interrupted", "missing"]
"""There is a result; a process is making it; a checkpoint waits to be resumed; nothing."""


@dataclass(frozen=True)
class RunState:
    """An order and how far it is.

    Attributes:
        order: The order.
        state: How far it is.
        path: Where its result is, or will be.
    """

    order: Order
    state: State
    path: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for other programs."""
        order = self.order
        names = {"task": order.task, "method": order.method, "context": order.context}
        return {**names, "profile": order.profile, "seed": order.seed, "state": self.state, "result": str(self.path)}


def run_state(order: Order, out: Path) -> RunState:
    """How far a run is; nothing is written.

    Args:
        order: The order.
        out: The folder of results.
    """
    path = result_path(out, order)
    return RunState(order, _state(out, path), path)


def _state(out: Path, path: Path) -> State:
    if path.exists():
        return "done"
    if is_being_made(out, path):
        return "running"
    folder = unfinished(out, path)
    return "interrupted" if folder.is_dir() and any(folder.iterdir()) else "missing"
