"""Training on several processes, such as those that `torchrun` starts: what they share, and how they stay together.

Each process takes its share of every step's examples (`fsvi.training.sharding`) and draws its own noise and context
points. One all-reduce per step averages the gradients, so that all processes make the same step. `Ranks` is the case
of one process, with the same methods, which share nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from fsvi.errors import FSVIError, InvalidInputError, ProcessLostError
from fsvi.methods.base import Method
from fsvi.networks.devices import random_state, seed_random, set_random_state
from fsvi.networks.parameters import batch_norms
from fsvi.serialization import digest

TIMEOUT = timedelta(seconds=60)
"""How long a process waits for the others during training; a process that is killed is noticed at once."""
_START = timedelta(minutes=30)
"""How long a process waits for the others before training: one may still be reading data."""
_TO_TELL = 3.0
"""Seconds for which a process that has nothing to say waits, so that torchrun does not end the one that has."""
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_store: list[Store] = []
_opened: list[Store] = []

Value = TypeVar("Value")


class Ranks:
    """One process, which shares nothing."""

    rank = 0
    """the number of this process"""
    size = 1
    """the number of processes"""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files, progress and messages."""
        return self.rank == 0

    def average(
        self, method: Method, optimizer: Optimizer, terms: dict[str, Tensor], count: int
    ) -> tuple[dict[str, Tensor], int]:
        """Average gradients and terms over all processes, weighted by their numbers of examples.

        Args:
            method: The method, after its backward pass.
            optimizer: The optimizer of the gradients' parameters.
            terms: This process's terms of the loss.
            count: This process's number of examples.

        Returns:
            The terms, and the number of examples of all processes.
        """
        return terms, count

    def map_rows(self, function: Callable[[Any, Tensor], Tensor], x: Any, y: Tensor) -> Tensor | None:
        """`function` of this process's rows, contiguous; None without any."""
        return function(x, y)

    def joined_rows(self, batches: list[Tensor | None]) -> list[Tensor]:
        """What `map_rows` returned for each batch, on all processes, in the order of the rows."""
        return [values for values in batches if values is not None]

    def settle(self, method: Method) -> None:
        """An epoch has ended: average the statistics of BatchNorm layers."""

    def share(self, method: Method) -> None:
        """Give every process the tensors of the first one."""

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Refuse values in which processes differ."""

    def check_state(self, method: Method) -> None:
        """Refuse parameters in which processes differ."""

    def agree(self, decision: bool) -> bool:
        """The decision of the first process."""
        return decision

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes."""
        return list(numbers)

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes."""
        return [value]

    def from_main(self, make: Callable[[], Value]) -> Value:
        """What `make` returns on the first process."""
        return make()

    def own_device(self, device: torch.device) -> torch.device:
        """The device of this process: each one on a machine takes a GPU of its own."""
        return device

    # Random numbers -------------------------------------------------------------------------------------------------

    def seed(self, seed: int, device: torch.device, epoch: int = 0) -> None:
        """Let this process draw its own random numbers from now on."""

    def random_states(self, device: torch.device) -> dict[str, Any]:
        """The random states of all processes, for a checkpoint."""
        states = self.gather({"cpu": torch.get_rng_state(), "device": random_state(device)})
        return {"size": self.size, "states": states}

    def restore_random(self, saved: Mapping[str, Any] | None, seed: int, device: torch.device, epoch: int) -> None:
        """Continue this process's random numbers, or draw new ones if the number of processes has changed."""
        if saved is not None and saved["size"] == self.size:
            torch.set_rng_state(saved["states"][self.rank]["cpu"])
            set_random_state(device, saved["states"][self.rank]["device"])
        else:
            self.seed(seed, device, epoch)


class ProcessGroup(Ranks):
    """Several processes that train together; every method is called on all of them, in the same order.

    Args:
        store: The store through which the processes found each other.
    """

    def __init__(self, store: Store) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store = store
        self._is_first_step = True

    # Steps ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def average(
        self, method: Method, optimizer: Optimizer, terms: dict[str, Tensor], count: int
    ) -> tuple[dict[str, Tensor], int]:
        """One all-reduce of one vector: gradients, terms, sums of the method, and the number of examples."""
        if self._is_first_step:
            self._average_first(method, count)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        sums = method.step_sums()
        dtype = torch.promote_types(method.dtype, torch.float32)
        known = torch.tensor([float(p.grad is not None) for p in parameters] + [float(count)])
        means = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters] + list(terms.values())
        weighed = torch.cat([mean.reshape(-1).to(dtype) for mean in means]).mul_(count)
        vector = torch.cat([weighed, *(each.reshape(-1).to(dtype) for each in sums), known.to(weighed)])
        self._reduce(vector)
        *present, total = vector[-len(known) :].tolist()
        vector[: len(weighed)].div_(total)
        parts = vector[: -len(known)].split([each.numel() for each in (*means, *sums)])
        for p, here, part in zip(parameters, present, parts, strict=False):
            if here:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad.copy_(part.view(p.shape))
        rest = parts[len(parameters) :]
        for each, part in zip(sums, rest[len(terms) :], strict=True):
            each.copy_(part.view(each.shape))
        return {name: part.reshape(()) for name, part in zip(terms, rest, strict=False)}, round(total)

    def _average_first(self, method: Method, count: int) -> None:
        """Average what the first minibatch has set, such as the scale of VOGN."""
        self._is_first_step = False
        for tensor in method.set_by_first_batch():
            vector = torch.cat([tensor.detach().double().reshape(-1), tensor.new_ones(1, dtype=torch.double)]) * count
            self._reduce(vector)
            tensor.data.copy_((vector[:-1] / vector[-1]).view(tensor.shape))

    # Epochs ---------------------------------------------------------------------------------------------------------

    def map_rows(self, function: Callable[[Any, Tensor], Tensor], x: Any, y: Tensor) -> Tensor | None:
        """`function` of this process's share."""
        rows = torch.arange(len(y), device=y.device).tensor_split(self.size)[self.rank]
        return function(x[rows], y[rows]) if len(rows) else None

    def joined_rows(self, batches: list[Tensor | None]) -> list[Tensor]:
        """The shares of all processes, batch by batch."""
        everything = self.gather([None if values is None else values.cpu() for values in batches])
        return [values for shares in zip(*everything, strict=True) for values in shares if values is not None]

    @torch.no_grad()
    def settle(self, method: Method) -> None:
        """Average running means and variances over processes; the numbers of batches are equal."""
        layers = batch_norms(method)
        buffers = [b for layer in layers for b in layer.buffers(recurse=False) if b.is_floating_point()]
        if not buffers:
            return
        vector = torch.cat([buffer.double().reshape(-1) for buffer in buffers])
        self._reduce(vector)
        parts = (vector / self.size).split([buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view(buffer.shape))

    def share(self, method: Method) -> None:
        """Broadcast all tensors."""
        own = method.tensors()
        shared = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in own.items()}
        with self._together():
            for tensor in shared.values():
                dist.broadcast(tensor, 0)
        if not self.is_main:
            method.load_tensors(shared)

    def check_same(self, values: Mapping[str, Any]) -> None:
        """The error names the first value that differs."""
        everything = self.gather(dict(values))
        first = everything[0]
        for rank, other in enumerate(everything):
            for name in sorted(first.keys() | other.keys()):
                ours, theirs = first.get(name), other.get(name)
                if ours != theirs:
                    differs = f"{name}={_short(theirs)}, but process 0 has {_short(ours)}"
                    if _is_checksum(ours) and _is_checksum(theirs):
                        differs = f"other values in {name} than process 0"
                    raise InvalidInputError(
                        f"process {rank} has {differs}: give every process the same data and settings, or pass "
                        "distributed=False to train on each process alone."
                    )

    def check_state(self, method: Method) -> None:
        """All processes have made the same steps, so all bits must be equal."""
        digests = self.gather(digest(method.tensors()))
        wrong = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if wrong:
            raise FSVIError(
                f"process {wrong[0]} has other parameters than process 0 after the same steps: train on machines of "
                "one kind, and let no callback change parameters on one process alone."
            )

    def agree(self, decision: bool) -> bool:
        """The decision of the first process, by one small all-reduce."""
        vote = torch.tensor([float(decision and self.is_main)])
        self._reduce(vote)
        return bool(vote)

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes, by one small all-reduce."""
        vector = torch.tensor(numbers, dtype=torch.double)
        self._reduce(vector)
        return list(vector.tolist())

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in their order."""
        values: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(values, value)
        return values

    def from_main(self, make: Callable[[], Value]) -> Value:
        """What `make` returns on the first process; the others do not call it."""
        made = [make() if self.is_main else None]
        with self._together():
            dist.broadcast_object_list(made, 0)
        return made[0]  # type: ignore[return-value]

    def seed(self, seed: int, device: torch.device, epoch: int = 0) -> None:
        """A different seed on each process; that of another `seed` is not among them."""
        seed_random(mixed_seed(seed, "noise", self.rank, self.size, epoch), device)

    def restore_random(self, saved: Mapping[str, Any] | None, seed: int, device: torch.device, epoch: int) -> None:
        """As in `Ranks`; the first step of a resumed run sets nothing."""
        self._is_first_step = False
        super().restore_random(saved, seed, device, epoch)

    def own_device(self, device: torch.device) -> torch.device:
        """The GPU with the number that torchrun gives to the process."""
        local = os.environ.get("LOCAL_RANK")
        return torch.device("cuda", int(local)) if device.type == "cuda" and local is not None else device

    # Errors ---------------------------------------------------------------------------------------------------------

    def is_first_to_fail(self) -> bool:
        """Whether no other process has an error yet; the first one tells the user."""
        with suppress(RuntimeError):
            return self._store.add("fsvi/errors", 1) == 1
        return True  # the store went down with another process

    def _reduce(self, vector: Tensor) -> None:
        with self._together():
            dist.all_reduce(vector)

    def _together(self) -> AbstractContextManager[None]:
        return told_as_lost(self.rank, self.size)


@contextmanager
def told_as_lost(rank: int, size: int) -> Iterator[None]:
    """Turn the backend's error about a process that is gone into a sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLostError(
            f"process {rank} of {size} has lost another one, which ended or did not answer for {TIMEOUT.seconds} "
            "seconds: start again with resume=True, or let torchrun --max-restarts do it."
        ) from error


# Opening --------------------------------------------------------------------------------------------------------------


@contextmanager
def joined(distributed: bool | None) -> Iterator[Ranks]:
    """The processes that train together.

    A process group that exists is used. Otherwise one is made from the environment variables that `torchrun` sets,
    and destroyed at the end.

    Args:
        distributed: Whether to train together; None does so if there is a group of several processes, or if the
            environment describes one.
    """
    if not _is_wanted(distributed):
        yield Ranks()
        return
    is_own = not dist.is_initialized()
    store = _open() if is_own else dist.distributed_c10d._get_default_store()
    ranks = ProcessGroup(store)
    try:
        with nullcontext() if ranks.is_main else warnings.catch_warnings():
            if not ranks.is_main:
                warnings.simplefilter("ignore")
            yield ranks
    except FSVIError as error:
        if not ranks.is_first_to_fail():
            _silence(error)
        raise
    except BaseException:
        ranks.is_first_to_fail()
        raise
    finally:
        if is_own:
            dist.destroy_process_group()


def process_number() -> int:
    """The number of this process among those that train together; 0 if it is alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if _is_described() else 0


def num_processes() -> int:
    """How many processes train together."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ["WORLD_SIZE"]) if _is_described() else 1


def was_restarted() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def run_name() -> str | None:
    """The name that torchrun has given to this run, which a restart keeps."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def mixed_seed(*parts: Any) -> int:
    """A seed that depends on all parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little")


def leave_quietly() -> None:
    """Wait before a process ends whose error another one tells; torchrun ends the others with the first."""
    if run_name() is not None:
        time.sleep(_TO_TELL)


def _is_wanted(distributed: bool | None) -> bool:
    if distributed is not None and not isinstance(distributed, bool):
        raise InvalidInputError(f"distributed={distributed!r} must be True, False, or None to find out.")
    found = (dist.is_available() and dist.is_initialized()) or _is_described()
    if distributed and not found:
        raise InvalidInputError(
            "distributed=True needs several processes: start the script with torchrun --nproc-per-node=2, or call "
            "torch.distributed.init_process_group first."
        )
    if distributed is False or not found:
        return False
    return dist.get_world_size() > 1 if dist.is_initialized() else True


def _is_described() -> bool:
    """Whether environment variables describe a group of several processes."""
    return all(name in os.environ for name in _VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def _open() -> Store:
    """Make a process group: gloo connects CPUs, and NCCL GPUs.

    Each group has its own part of the store, so that `fit` can be called many times, and again after a restart.
    """
    # default arguments in this module would keep a group alive that exists when it is first imported, and with it
    # threads that can abort the process when Python ends
    importlib.import_module("torch.distributed.nn.functional")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not _store:
        _store.append(next(rendezvous("env://", timeout=_START))[0])
        _install_hook()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"fsvi/{attempt}/{len(_opened)}", _store[0])
    _opened.append(store)
    _meet(store, "ready", rank, size, _START)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with told_as_lost(rank, size):
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        _meet(store, "connected", rank, size, TIMEOUT)  # a process that fails at once must not break the connecting
    return store


def _meet(store: Store, name: str, rank: int, size: int, patience: timedelta) -> None:
    store.set(f"{name}/{rank}", "yes")
    store.wait([f"{name}/{other}" for other in range(size)], patience)


def _silence(error: FSVIError) -> None:
    """Another process tells the user, so this one's message would only repeat it."""
    error.is_told = True


def _install_hook() -> None:
    """Print no traceback of an error that another process tells."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, FSVIError) and error.is_told:
            leave_quietly()
        else:
            before(kind, error, trace)

    sys.excepthook = hook


def _is_checksum(value: Any) -> bool:
    """Whether a value says nothing to people."""
    return isinstance(value, str) and len(value) == hashlib.sha256().digest_size * 2 and value.isalnum()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}…{text[-1]}"
