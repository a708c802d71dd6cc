"""Processes that train together, such as those that `torchrun` starts; one process is the case of size 1.

The gradient is averaged by `torch.nn.parallel.DistributedDataParallel`. This module has what goes with it: who this
process is, sums over processes, and the refusal of processes that differ.
"""

from __future__ import annotations

import atexit
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fsvi.errors import InvalidInputError, ProcessLostError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_CHECKSUM = 64
"""the length of a checksum, which says nothing to people"""

Value = TypeVar("Value")


def size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if _is_open() else 1


def rank() -> int:
    """The number of this process, from 0; the first one writes files, progress and messages."""
    return dist.get_rank() if _is_open() else 0


@contextmanager
def joined() -> Iterator[None]:
    """Let the processes that torchrun has started train together; a group that exists already is used.

    A group made here lasts until the process ends, because torch cannot make a second one from the same variables.
    """
    if not _is_open() and _is_one_of_several():
        # Imported after the group is made, this module would keep it alive, with threads that abort Python at its end.
        importlib.import_module("torch.distributed.nn.functional")
        store, number, processes = next(rendezvous("env://"))
        store = PrefixStore(f"fsvi/{os.environ.get(_RESTARTS, 0)}", store)  # a restart finds no addresses of the dead
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=processes)
        atexit.register(lambda: dist.destroy_process_group() if _is_open() else None)
    try:
        with warnings.catch_warnings():
            if rank() > 0:
                warnings.simplefilter("ignore")
            yield
    except RuntimeError as error:
        if size() == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise ProcessLostError(
            f"process {rank()} of {size()} has lost another one, which ended or did not answer: start again with "
            "resume=True, or let torchrun --max-restarts do it."
        ) from error


def all_sum(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over processes."""
    if size() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def total(number: float) -> float:
    """The sum of a number over processes."""
    tensor = torch.tensor(float(number), dtype=torch.float64)
    all_sum([tensor])
    return float(tensor)


def gather(value: Value) -> list[Value]:
    """The values of all processes, in their order."""
    values: list[Any] = [value] * size()
    if size() > 1:
        dist.all_gather_object(values, value)
    return values


def from_first(value: Value) -> Value:
    """The value of the first process."""
    values = [value]
    if size() > 1:
        dist.broadcast_object_list(values, 0)
    return values[0]


def check_same(values: Mapping[str, Any]) -> None:
    """Refuse values in which processes differ, by the name of the first one."""
    first, *others = gather(dict(values))
    for number, other in enumerate(others, start=1):
        for name in sorted(first.keys() | other.keys()):
            ours, theirs = first.get(name), other.get(name)
            if ours != theirs:
                is_checksum = isinstance(ours, str) and isinstance(theirs, str) and len(ours) == _CHECKSUM
                differs = f"{name}={theirs!r}, but process 0 has {ours!r}"
                raise InvalidInputError(
                    f"process {number} has {f'other values in {name} than process 0' if is_checksum else differs}: "
                    "give every process the same data and settings."
                )


def own_device(device: torch.device) -> torch.device:
    """The device of this process: each one on a machine takes a GPU of its own."""
    local = os.environ.get("LOCAL_RANK") if size() > 1 else None
    return torch.device("cuda", int(local)) if device.type == "cuda" and local is not None else device


def run_name() -> str | None:
    """The name that torchrun has given to this run, which a restart keeps."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def was_restarted() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return int(os.environ.get(_RESTARTS, 0)) > 0


def check_alone(command: str) -> None:
    """Refuse a command that torchrun has started on several processes, all of which would do the same."""
    if _is_one_of_several():
        raise InvalidInputError(
            f"{command} is for one process, but torchrun has started {os.environ['WORLD_SIZE']}: start it by itself."
        )


def _is_one_of_several() -> bool:
    return all(name in os.environ for name in _VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def _is_open() -> bool:
    return dist.is_available() and dist.is_initialized()
