"""Everything that training needs to go on as if it had never stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.methods.method import Method
from fsvi.serialization import check_writable, read_tree, write_tree
from fsvi.training.batches import Batches, LoaderBatches

_KIND = "fsvi checkpoint"
_NAME = "checkpoint.fsvi"


class Checkpoints:
    """The newest checkpoint of a run, in a folder; written at ends of epochs, not more often than `interval` seconds."""

    def __init__(self, folder: str | Path, interval: float, settings: dict[str, Any]) -> None:
        self.path = check_writable(folder) / _NAME
        self.interval = interval
        self.settings = settings
        self._written = -float("inf")

    def read(self) -> dict[str, Any] | None:
        """What was written last, or None; a checkpoint of other settings is refused."""
        if not self.path.exists():
            return None
        tree: dict[str, Any] = read_tree(self.path, _KIND)
        differing = [name for name, value in self.settings.items() if tree["settings"].get(name) != value]
        if differing:
            name = differing[0]
            raise InvalidInputError(
                f"{self.path} comes from a run with {name}={tree['settings'].get(name)!r}, not {self.settings[name]!r}: "
                "resume with the same settings, or choose another folder."
            )
        return tree

    def refuse_existing(self) -> None:
        """Refuse to overwrite an earlier run's checkpoint."""
        if self.path.exists():
            raise InvalidInputError(f"{self.path} exists: pass resume=True to go on from it, or choose another folder.")

    def write(self, state: dict[str, Any], force: bool = False) -> None:
        """Replace the checkpoint, if the last one is old enough or `force` says so."""
        if force or time.monotonic() - self._written >= self.interval:
            write_tree(self.path, {**state, "settings": self.settings}, _KIND)
            self._written = time.monotonic()


def capture(method: Method, optimizer: Optimizer, batches: Batches) -> dict[str, Any]:
    """Parameters, optimiser and random state."""
    state = {"method": method.tensors(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    generator = batches.generator if isinstance(batches, LoaderBatches) else None
    return state if generator is None else {**state, "loader_rng": generator.get_state()}


def restore(state: dict[str, Any], method: Method, optimizer: Optimizer, batches: Batches) -> None:
    """Undo `capture`."""
    method.load_tensors(state["method"])
    optimizer.load_state_dict(_with_tuples(state["optimizer"], optimizer))
    torch.set_rng_state(state["rng"])
    if isinstance(batches, LoaderBatches) and batches.generator is not None and "loader_rng" in state:
        batches.generator.set_state(state["loader_rng"])


def copy_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A snapshot that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _with_tuples(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """JSON has no tuples; give the groups back the types that the optimiser itself uses (Adam's betas)."""
    groups = [
        {key: tuple(value) if isinstance(own.get(key), tuple) else value for key, value in group.items()}
        for group, own in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**state, "param_groups": groups}
