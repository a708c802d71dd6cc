"""Which examples of each step a process trains on, when several processes share the work."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from fsvi.errors import InvalidInputError
from fsvi.inputs import concatenate
from fsvi.methods import SWAG, Laplace
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.training.batches import Batches, LoaderBatches, Pair, TensorBatches
from fsvi.training.distributed import Ranks, mixed_seed
from fsvi.training.samplers import random_states_kept
from fsvi.training.streams import StreamBatches

_NEEDS_ALL = (
    "{} goes through all data after training, but each process only has a part of a stream that shards itself: give "
    "the whole stream, without shards_itself."
)
Value = TypeVar("Value")


def sharded(method: Method, whole: Batches, ranks: Ranks, batch_size: int, seed: int) -> Batches:
    """This process's share of the data.

    All processes make the same number of steps. A step's examples are divided so that shares differ by at most one
    example, and every example is seen once per epoch.

    Args:
        method: The method to train.
        whole: All data.
        ranks: The processes.
        batch_size: The number of examples per step and process.
        seed: The seed of the order, which all processes share.
    """
    if ranks.size == 1:
        return whole
    least = 2 if batch_size > 1 and batch_norms(method) else 1
    if whole.num_examples < least * ranks.size:
        what = "examples" if least == 1 else "examples with BatchNorm layers in the network"
        raise InvalidInputError(
            f"{whole.num_examples} {what} cannot be shared by {ranks.size} processes, which need {least} each: start "
            "fewer processes."
        )
    if isinstance(whole, TensorBatches):
        return ShardedTensors(whole, ranks, batch_size, seed, least)
    if isinstance(whole, LoaderBatches):
        return ShardedLoader(whole, ranks, seed, least)
    if isinstance(whole, StreamBatches) and whole.shards_itself:
        _check_passes(method)
        return OwnStream(whole, ranks, seed)
    if isinstance(whole, StreamBatches):
        return SharedStream(whole, ranks, seed, least)
    raise InvalidInputError(f"{type(whole).__name__} cannot be shared by {ranks.size} processes.")


def check_validation(held_out: Batches, ranks: Ranks) -> None:
    """Refuse validation data that each process sees another part of: all must measure the same.

    Args:
        held_out: The validation data.
        ranks: The processes.
    """
    if ranks.size > 1 and isinstance(held_out, StreamBatches) and held_out.shards_itself:
        raise InvalidInputError(
            "the stream shards itself, but all processes must read the same validation data, which fit "
            "then divides: give the whole stream."
        )


def without_own_shards(data: Any, ranks: Ranks) -> Any:
    """A loader with a DistributedSampler as a loader of all its data, which `sharded` divides as well."""
    sampler = data.sampler if isinstance(data, DataLoader) else None
    if ranks.size == 1 or not isinstance(sampler, DistributedSampler) or sampler.num_replicas != ranks.size:
        return data
    dataset: Any = data.dataset
    order: Sampler[int] = RandomSampler(dataset) if sampler.shuffle else SequentialSampler(dataset)
    return _rebuilt(data, BatchSampler(order, data.batch_size or 1, data.drop_last))


class _Share(Batches):
    """What both kinds of data have in common: everything but the training steps is that of all data."""

    def __init__(self, whole: Any, ranks: Ranks, seed: int) -> None:
        self.whole, self.ranks = whole, ranks
        self.num_examples, self.num_data = whole.num_examples, whole.num_data
        self.generators = whole.generators
        self._seed, self._epoch = seed, 0

    @property
    def fingerprint(self) -> str | None:  # type: ignore[override]
        """That of all data."""
        return self.whole.fingerprint

    def set_epoch(self, epoch: int) -> None:
        """The order of the data depends on the seed and on the epoch."""
        self._epoch = epoch

    def examples(self) -> Pair:
        """The same on every process."""
        return self.whole.examples()

    def ordered(self) -> Iterator[Pair]:
        """All data."""
        return self.whole.ordered()

    def shuffled(self) -> Iterator[Pair]:
        """All data, for methods that make a pass of their own."""
        return self.whole.shuffled()

    def mean(self, values: Tensor) -> float:
        """That of all data."""
        return self.whole.mean(values)


class ShardedTensors(_Share):
    """A process's share of tensors in memory.

    Args:
        whole: All data.
        ranks: The processes.
        batch_size: The number of examples per step and process, at most.
        seed: The seed of the order.
        least: The least number of examples per step and process.
    """

    def __init__(self, whole: TensorBatches, ranks: Ranks, batch_size: int, seed: int, least: int = 1) -> None:
        super().__init__(whole, ranks, seed)
        steps = math.ceil(self.num_examples / (batch_size * ranks.size))
        self.num_batches = max(1, min(steps, self.num_examples // (least * ranks.size)))
        self.batch_size = math.ceil(self.num_examples / (self.num_batches * ranks.size))

    def weighted(self) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """This process's part of every step."""
        generator = torch.Generator().manual_seed(mixed_seed(self._seed, "order", self._epoch))
        order = torch.randperm(self.num_examples, generator=generator)
        for step in order.tensor_split(self.num_batches):
            yield self.whole.take(step.tensor_split(self.ranks.size)[self.ranks.rank])


class ShardedLoader(_Share):
    """A process's share of a DataLoader's data: one of as many batches as there are processes.

    Args:
        whole: All data.
        ranks: The processes.
        seed: The seed of the order, unless the loader's sampler has a generator of its own.
        least: The least number of examples per step and process.
    """

    def __init__(self, whole: LoaderBatches, ranks: Ranks, seed: int, least: int = 1) -> None:
        super().__init__(whole, ranks, seed)
        self._sampler = StepSampler(whole.loader.batch_sampler, ranks, least)
        with random_states_kept(whole.loader):
            self._sampler.draw(seed, 0)
        self.num_batches, self.batch_size = len(self._sampler), whole.batch_size
        self._loader = _rebuilt(whole.loader, self._sampler)

    def weighted(self) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """This process's part of every step; a sampler that gives processes different orders is refused."""
        self._sampler.draw(self._seed, self._epoch)
        self.ranks.check_same({"the order of the data": self._sampler.checksum})
        return ((x, y, None) for x, y in self.whole.over(self._loader))


class SharedStream(_Share):
    """A process's share of a stream that all processes read.

    Consecutive batches, one per process, make a step. What is left at the end is divided evenly, together with the
    step before if it would be too small. So each process holds the batches of two steps.

    A stream that draws from torch's global generator gives all processes the same order, another one in each epoch. If
    processes still read different examples, the first step in which they do is refused.

    Args:
        whole: The stream.
        ranks: The processes.
        seed: The seed of the order.
        least: The least number of examples per step and process.
    """

    def __init__(self, whole: StreamBatches, ranks: Ranks, seed: int, least: int = 1) -> None:
        super().__init__(whole, ranks, seed)
        self._least, self.batch_size = least, whole.batch_size
        self.num_batches = math.ceil(whole.num_batches / ranks.size)

    def shuffled(self) -> Iterator[Pair]:
        """All data, in the order of the epoch."""
        return self._drawn(self.whole.shuffled())

    def weighted(self) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """This process's part of every step."""
        size, checksum = self.ranks.size, 0
        for step in self._steps():
            for batch in step:
                checksum = zlib.crc32(_bytes(self.whole.targets(batch)), checksum)
            self._compare(True, checksum)
            sizes = {len(self.whole.targets(batch)) for batch in step}
            if len(step) == size and len(sizes) == 1:
                yield (*self.whole.checked(step[self.ranks.rank]), None)
            else:
                yield (*self._even_part(step), None)
        self._compare(False, checksum)

    def _steps(self) -> Iterator[list[Any]]:
        """The batches of each step; one step is held back, because the next one may be too small."""
        held: list[Any] = []
        batches = self._drawn(self.whole.raw())
        while step := list(islice(batches, self.ranks.size)):
            if held and sum(len(self.whole.targets(batch)) for batch in step) < self._least * self.ranks.size:
                held += step
                continue
            if held:
                yield held
            held = step
        if held:
            yield held

    def _even_part(self, step: list[Any]) -> Pair:
        """This process's part of all examples of a step."""
        inputs, targets = zip(*map(self.whole.checked, step), strict=True)
        x, y = concatenate(list(inputs)), torch.cat(targets)
        if len(y) < self.ranks.size:
            raise InvalidInputError(
                f"a step of the stream has {len(y)} examples for {self.ranks.size} processes: use larger batches, or "
                "start fewer processes."
            )
        rows = torch.arange(len(y), device=y.device).tensor_split(self.ranks.size)[self.ranks.rank]
        return x[rows], y[rows]

    def _compare(self, goes_on: bool, checksum: int) -> None:
        """Refuse streams that differ, or that end at different steps."""
        going, total = self.ranks.sums([float(goes_on), float(checksum)])
        if going not in (0, self.ranks.size) or total != self.ranks.size * checksum:
            raise InvalidInputError(
                f"the stream, a {self.whole.dataset_name}, gives processes different examples: let it shuffle by "
                "torch's global generator or a fixed seed, or if it divides the data among processes itself, set its "
                "attribute shards_itself to True."
            )

    def _drawn(self, batches: Iterable[Value]) -> Iterator[Value]:
        """What is read with the random numbers of the epoch's order, which all processes share."""
        state = torch.Generator().manual_seed(mixed_seed(self._seed, "order", self._epoch)).get_state()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            iterator = iter(batches)
            state = torch.get_rng_state()
        while True:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                state = torch.get_rng_state()
            yield batch


class OwnStream(_Share):
    """The stream of a process that gives each process other examples, as it says by `shards_itself = True`.

    All processes make as many steps as the process with the fewest batches; further batches of the others are left
    out. Examples for the checks before training are those of the first process.

    Args:
        whole: The stream of this process.
        ranks: The processes.
        seed: The seed of training.
    """

    def __init__(self, whole: StreamBatches, ranks: Ranks, seed: int) -> None:
        super().__init__(whole, ranks, seed)
        self.batch_size = whole.batch_size
        self.num_batches = min(ranks.gather(whole.num_own_batches(ranks.size)))

    def examples(self) -> Pair:
        """Those of the first process."""
        x, y = self.ranks.from_main(self.whole.examples)
        return x, y

    def ordered(self) -> Iterator[Pair]:
        """Not known."""
        raise self._refusal()

    def shuffled(self) -> Iterator[Pair]:
        """Not known."""
        raise self._refusal()

    def weighted(self) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """The batches of this process, until one of the processes has no more."""
        batches = self.whole.own(self.ranks.size)
        while True:
            batch = next(batches, None)
            if self.ranks.sums([float(batch is not None)])[0] < self.ranks.size or batch is None:
                return
            yield (*batch, None)

    def _refusal(self) -> InvalidInputError:
        return InvalidInputError(_NEEDS_ALL.format("the method"))


def _check_passes(method: Method) -> None:
    """Refuse methods that go through all data once more, of which a process has only its own part."""
    for part in method.modules():
        if isinstance(part, Laplace) or (isinstance(part, SWAG) and batch_norms(method)):
            raise InvalidInputError(_NEEDS_ALL.format(type(part).__name__))


def _bytes(targets: Any) -> Any:
    return torch.as_tensor(targets).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


class StepSampler(Sampler[list[Any]]):
    """The batches of one process out of those of all processes.

    Consecutive batches, one per process, make a step. The last step of an epoch divides what is left evenly, together
    with the step before it if it would be too small.

    Args:
        batch_sampler: The sampler of batches for all processes.
        ranks: The processes.
        least: The least number of examples per step and process.
    """

    def __init__(self, batch_sampler: Any, ranks: Ranks, least: int) -> None:
        self._batch_sampler, self._ranks, self._least = batch_sampler, ranks, least
        self._steps: list[list[list[Any]]] = []

    def draw(self, seed: int, epoch: int) -> None:
        """Draw the order of an epoch, which is the same on all processes."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mixed_seed(seed, "order", epoch))
            batches = [list(batch) for batch in self._batch_sampler]
        self._steps = divided(batches, self._ranks.size, self._least)

    @property
    def checksum(self) -> int:
        """A number by which processes compare their orders."""
        return zlib.crc32(repr(self._steps).encode())

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[Any]]:
        return (step[self._ranks.rank] for step in self._steps)


def divided(batches: Sequence[list[Any]], size: int, least: int = 1) -> list[list[list[Any]]]:
    """Batches as steps of `size` batches each, one per process.

    Args:
        batches: The batches of an epoch, as lists of indices.
        size: The number of processes.
        least: The least number of indices per process and step.
    """
    steps = [list(batches[start : start + size]) for start in range(0, len(batches), size)]
    if len(steps) > 1 and sum(map(len, steps[-1])) < least * size:
        steps[-2:] = [steps[-2] + steps[-1]]
    return [
        step if len({len(batch) for batch in step}) == 1 and len(step) == size else _even(step, size) for step in steps
    ]


def _even(step: Sequence[list[Any]], size: int) -> list[list[Any]]:
    """All indices of a step, in parts that differ by at most one."""
    indices = list(chain.from_iterable(step))
    bounds = [round(part * len(indices) / size) for part in range(size + 1)]
    return [indices[start:end] for start, end in pairwise(bounds)]


def _rebuilt(loader: DataLoader[Any], batch_sampler: Any) -> DataLoader[Any]:
    """The same loader with another sampler of batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batch_sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
