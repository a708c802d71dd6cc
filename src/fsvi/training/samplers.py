"""Which examples of its dataset a DataLoader can deliver, and which of them a process trains on.

N, the number of examples that the KL is weighed by, is the number of *different* examples that training can meet, over
all epochs. A sampler that leaves examples out makes it smaller than the dataset. Repetitions and weights do not change
it: an example that is drawn twice is still one example.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NoReturn, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fsvi import ranks
from fsvi.errors import InvalidInputError

Value = TypeVar("Value")


def deliverable_indices(loader: DataLoader[Any], required: bool = True) -> Sequence[Any]:
    """The indices of all examples that the loader can deliver, each once; it has a length and a map-style dataset.

    An unknown number is an error if it is `required`; else the indices of one epoch are returned.
    """
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else None
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        if required and sampler.num_replicas != ranks.size():
            _ask(sampler, f"delivers a part of the data to each of {sampler.num_replicas} processes")
        return range(len(sampler.dataset))  # type: ignore[arg-type]
    draws = isinstance(sampler, (RandomSampler, WeightedRandomSampler))
    if draws:
        weights = getattr(sampler, "weights", None)
        found = range(len(sampler.data_source)) if weights is None else weights.nonzero().flatten().tolist()
        if required and sampler.num_samples < len(found):
            _ask(sampler, f"draws {sampler.num_samples} of {len(found)} examples per epoch")
        return found
    if isinstance(sampler, SequentialSampler):
        return range(len(sampler) - len(sampler) % batches.batch_size if batches.drop_last else len(sampler))
    return _observed(loader, batches if sampler is None else sampler, required)


def owned_generators(loader: DataLoader[Any]) -> tuple[torch.Generator, ...]:
    """The random generators that the loader and its samplers hold, each once."""
    owners = (loader, getattr(loader.batch_sampler, "sampler", loader.sampler), loader.batch_sampler)
    owned = (getattr(owner, "generator", None) for owner in owners)
    return tuple({id(generator): generator for generator in owned if generator is not None}.values())


def _observed(loader: DataLoader[Any], sampler: Any, required: bool) -> Sequence[Any]:
    """What an unknown sampler of examples or batches delivers in one epoch, if the next one has the same examples."""
    generators = owned_generators(loader)
    states = [generator.get_state() for generator in generators]
    with torch.random.fork_rng(devices=[]):
        first = _one_epoch(loader, sampler)
        if required and first.keys() != _one_epoch(loader, sampler).keys():
            _ask(sampler, "delivers other examples in each epoch")
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        return sorted(first)
    except TypeError:  # keys without an order
        return list(first)


def _one_epoch(loader: DataLoader[Any], sampler: Any) -> dict[Any, None]:
    """The different indices of one epoch, in the order of delivery."""
    delivered = islice(sampler, len(sampler))
    return dict.fromkeys(chain.from_iterable(delivered) if sampler is loader.batch_sampler else delivered)


def _ask(sampler: Any, behavior: str) -> NoReturn:
    raise InvalidInputError(
        f"the {type(sampler).__name__} {behavior}, so the number of examples for the weight of the KL is unknown: "
        "pass num_data=, the number of different examples that training should count."
    )


def drawn(loader: DataLoader[Any], seed: int) -> Iterator[Any]:
    """What a loader gives if it draws from torch's global generator in a state of its own, seeded by `seed`.

    Persistent workers are restarted too: no checkpoint could hold their random states.
    """
    source = copy.copy(loader)
    source._iterator = None
    state, iterator = torch.Generator().manual_seed(seed).get_state(), None
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            iterator = iter(source) if iterator is None else iterator
            try:
                value = next(iterator)
            except StopIteration:
                return
            state = torch.get_rng_state()
        yield value


# Several processes --------------------------------------------------------------------------------------------------


def steps_of(batches: Iterable[Value]) -> Iterator[list[Value]]:
    """Consecutive batches, one per process, make a step; in the last one, some processes may have none."""
    iterator = iter(batches)
    while step := list(islice(iterator, ranks.size())):
        yield step


class StepSampler(Sampler[list[Any]]):
    """The batches of this process out of those of all processes: nothing is repeated, and nothing is left out."""

    def __init__(self, batch_sampler: Any) -> None:
        self._batch_sampler = batch_sampler
        self.checksum = 0

    def __len__(self) -> int:
        return len(range(ranks.rank(), len(self._batch_sampler), ranks.size()))

    def __iter__(self) -> Iterator[list[Any]]:
        self.checksum = 0
        for step in steps_of(self._batch_sampler):
            self.checksum = zlib.crc32(repr([list(batch) for batch in step]).encode(), self.checksum)
            yield from step[ranks.rank() : ranks.rank() + 1]


def shared_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader of this process's share of the batches; a DistributedSampler, which repeats examples, is replaced."""
    if ranks.size() == 1:
        return loader
    batches: Any = loader.batch_sampler
    if isinstance(loader.sampler, DistributedSampler) and loader.sampler.num_replicas == ranks.size():
        order = (RandomSampler if loader.sampler.shuffle else SequentialSampler)(loader.dataset)  # type: ignore[arg-type]
        batches = BatchSampler(order, loader.batch_size or 1, loader.drop_last)
    names = "num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context generator prefetch_factor"
    kept = {name: getattr(loader, name) for name in names.split()}
    return DataLoader(loader.dataset, batch_sampler=StepSampler(batches), **kept)
