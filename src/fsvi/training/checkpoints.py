"""Checkpoints: the complete state of training, so that a resumed run has the same result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.networks.devices import random_state, set_random_state
from fsvi.serialization import CHECKPOINT, building_from, check_writable, read_tree, remove_leftovers, write_tree
from fsvi.validation import check_positive

_NAME = "checkpoint.fsvi"


class Checkpoints:
    """The newest checkpoint of a run, in a folder.

    Args:
        folder: The folder, which is created if necessary.
        interval: The least number of seconds between two checkpoints.
        resume: Whether to use the checkpoint of an earlier run. False refuses a folder that has one.
        writes: Whether this process writes the checkpoints. One that does not never touches the folder.
    """

    def __init__(self, folder: str | PathLike[str], interval: float, resume: bool, writes: bool = True) -> None:
        self.interval = check_positive("checkpoint_interval", interval, zero=True)
        self._written = -float("inf")
        self.path = check_writable(folder) / _NAME if writes else Path(folder) / _NAME
        if not writes:
            return
        remove_leftovers(self.path)
        if self.path.exists() and not resume:
            raise InvalidInputError(f"{self.path} exists: pass resume=True to continue it, or choose another folder.")

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last checkpoint has passed."""
        return time.monotonic() - self._written >= self.interval

    def read(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The last state, or None without a checkpoint; one from a run with other settings is refused."""
        if not self.path.exists():
            return None
        tree = read_tree(self.path, CHECKPOINT)
        with building_from(self.path):
            self._compare(tree["settings"], flatten(settings))
            state: dict[str, Any] = tree["state"]
        return state

    def write(self, state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        Args:
            state: What `capture` returned, and the history.
            settings: Everything that must not change between a checkpoint and its continuation.
        """
        write_tree(self.path, {"state": state, "settings": flatten(settings)}, CHECKPOINT)
        self._written = time.monotonic()

    def _compare(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                raise InvalidInputError(
                    f"{self.path} comes from a run with {name}={theirs.get(name)!r}, not {ours.get(name)!r}: "
                    "resume with the same settings, or choose another folder."
                )


def flatten(settings: Any, name: str = "") -> dict[str, Any]:
    """Nested settings as plain values under dotted names; other objects become the name of their type.

    Args:
        settings: Nested mappings and lists.
        name: The prefix of the names.
    """
    if isinstance(settings, Mapping):
        items = {str(key): value for key, value in settings.items()}
    elif isinstance(settings, (list, tuple)):
        items = {str(index): value for index, value in enumerate(settings)}
    else:
        plain = settings is None or isinstance(settings, (bool, int, float, str))
        return {name: settings if plain else type(settings).__name__}
    return {k: v for key, value in items.items() for k, v in flatten(value, f"{name}.{key}" if name else key).items()}


def capture(method: Method, optimizer: Optimizer, generators: Sequence[torch.Generator]) -> dict[str, Any]:
    """The parameters, the optimizer's state and the random states, also that of the method's device.

    Args:
        method: The method.
        optimizer: Its optimizer.
        generators: The random generators of the data.
    """
    states = [torch.get_rng_state(), *(generator.get_state() for generator in generators)]
    return {
        "method": method.tensors(),
        "optimizer": optimizer.state_dict(),
        "random": states,
        "device_random": random_state(method.device),
    }


def restore(
    state: Mapping[str, Any], method: Method, optimizer: Optimizer, generators: Sequence[torch.Generator]
) -> None:
    """Restore what `capture` returned.

    Args:
        state: The captured state.
        method: The method.
        optimizer: Its optimizer.
        generators: The random generators of the data.
    """
    method.load_tensors(state["method"])
    optimizer.load_state_dict(state["optimizer"])
    _arrange(optimizer)
    for generator, random in zip((torch.default_generator, *generators), state["random"], strict=True):
        generator.set_state(random)
    set_random_state(method.device, state.get("device_random"))


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A snapshot that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _arrange(optimizer: Optimizer) -> None:
    """Give the optimizer's state the memory layout of its parameters, which files do not keep and fused steps need."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
