"""Checkpoints: the complete state of training, so that a resumed run has the same result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.serialization import CHECKPOINT, building_from, check_writable, read_tree, remove_leftovers, write_tree

INTERVAL = 10.0
"""The least number of seconds between two checkpoints."""
_NAME, _LOCK = "checkpoint.fsvi", "checkpoint.lock"
_PATIENCE = 10.0
"""How many seconds to wait for a lock: workers of a process that was killed outlive it by a few."""


class Checkpoints:
    """The newest checkpoint of a run, in a folder that no other run may use. Only `resume` allows that one exists."""

    def __init__(self, folder: str | PathLike[str], resume: bool) -> None:
        self._written = -float("inf")
        self.path = Path(folder) / _NAME
        remove_leftovers(self.path)
        if self.path.exists() and not resume:
            raise InvalidInputError(f"{self.path} exists: pass resume=True to continue it, or choose another folder.")

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last checkpoint has passed."""
        return time.monotonic() - self._written >= INTERVAL

    def read(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The last state, or None without a checkpoint; one from a run with other settings is refused."""
        if not self.path.exists():
            return None
        tree = read_tree(self.path, CHECKPOINT)
        with building_from(self.path):
            theirs, ours = tree["settings"], flatten(settings)
            for name in sorted(theirs.keys() | ours.keys()):
                if theirs.get(name) != ours.get(name):
                    raise InvalidInputError(
                        f"{self.path} comes from a run with {name}={theirs.get(name)!r}, not {ours.get(name)!r}: "
                        "resume with the same settings, or choose another folder."
                    )
            state: dict[str, Any] = tree["state"]
        return state

    def write(self, state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Replace the checkpoint; the settings must not change between it and its continuation."""
        write_tree(self.path, {"state": state, "settings": flatten(settings)}, CHECKPOINT)
        self._written = time.monotonic()


@contextmanager
def opened(folder: str | PathLike[str] | None, resume: bool) -> Iterator[Checkpoints | None]:
    """The checkpoints in a folder, which is locked meanwhile; the system takes the lock from a process that dies."""
    if folder is None:
        yield None
        return
    try:
        lock = FileLock(check_writable(folder) / _LOCK).acquire(timeout=_PATIENCE)
    except Timeout as error:
        raise InvalidInputError(
            f"{folder} belongs to another training that is running: give each training a folder of its own."
        ) from error
    with lock:
        yield Checkpoints(folder, resume)


def flatten(settings: Any, name: str = "") -> dict[str, Any]:
    """Nested settings as plain values under dotted names; other objects become the name of their type."""
    if isinstance(settings, Mapping):
        items = {str(key): value for key, value in settings.items()}
    elif isinstance(settings, (list, tuple)):
        items = {str(index): value for index, value in enumerate(settings)}
    else:
        plain = settings is None or isinstance(settings, (bool, int, float, str))
        return {name: settings if plain else type(settings).__name__}
    return {k: v for key, value in items.items() for k, v in flatten(value, f"{name}.{key}" if name else key).items()}


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state in the memory layout of its parameters: files do not keep it, fused steps need it."""
    optimizer.load_state_dict(dict(state))
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
