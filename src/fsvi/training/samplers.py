"""Which examples of its dataset a DataLoader can deliver, and which of them a process trains on.

N, the number of examples that the KL is weighed by, is the number of *different* examples that training can meet, over
all epochs. A sampler that leaves examples out makes it smaller than the dataset. Repetitions and weights do not change
it: an example that is drawn twice is still one example.
"""

from __future__ import annotations

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
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fsvi import ranks
from fsvi.errors import InvalidInputError

Value = TypeVar("Value")


def deliverable_indices(loader: DataLoader[Any], required: bool = True) -> Sequence[Any]:
    """The indices of all examples that the loader can deliver, each once, in ascending order where they are ordered.

    Args:
        loader: A loader of a map-style dataset, with a length.
        required: Whether an unknown number is an error. False returns the indices of one epoch instead.
    """
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        return _observed(loader, required)
    sampler: Any = batch_sampler.sampler
    if isinstance(sampler, SequentialSampler):
        size = len(sampler)
        return range(size - size % batch_sampler.batch_size if batch_sampler.drop_last else size)
    if isinstance(sampler, SubsetRandomSampler):
        return list(dict.fromkeys(sampler.indices))
    if isinstance(sampler, WeightedRandomSampler):
        candidates: Sequence[int] = sampler.weights.nonzero().flatten().tolist()
        return _drawn(sampler, candidates, sampler.num_samples, required)
    if isinstance(sampler, RandomSampler):
        return _drawn(sampler, range(len(sampler.data_source)), sampler.num_samples, required)
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas == ranks.size() > 1:
        return range(len(sampler.dataset))  # type: ignore[arg-type]
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1 and required:
        raise InvalidInputError(
            f"the DistributedSampler delivers a part of the data to each of {sampler.num_replicas} processes: pass "
            "num_data=, the number of examples that all processes train on."
        )
    return _observed(loader, required)


def owned_generators(loader: DataLoader[Any]) -> tuple[torch.Generator, ...]:
    """The random generators that the loader and its samplers hold, each once."""
    owners = (loader, getattr(loader.batch_sampler, "sampler", loader.sampler), loader.batch_sampler)
    owned = (getattr(owner, "generator", None) for owner in owners)
    return tuple({id(generator): generator for generator in owned if generator is not None}.values())


def _drawn(sampler: Any, candidates: Sequence[int], num_samples: int, required: bool) -> Sequence[int]:
    """All candidates of a random sampler; fewer draws per epoch leave open how many of them training will meet."""
    if required and num_samples < len(candidates):
        _ask(sampler, f"draws {num_samples} of {len(candidates)} examples per epoch")
    return candidates


def _observed(loader: DataLoader[Any], required: bool) -> Sequence[Any]:
    """What an unknown sampler delivers in one epoch, if the next epoch has the same examples."""
    generators = owned_generators(loader)
    states = [generator.get_state() for generator in generators]
    with torch.random.fork_rng(devices=[]):
        first = _one_epoch(loader)
        if required and set(first) != set(_one_epoch(loader)):
            plain = type(loader.batch_sampler) is BatchSampler
            _ask(loader.sampler if plain else loader.batch_sampler, "delivers other examples in each epoch")
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    return _sorted(first)


def _one_epoch(loader: DataLoader[Any]) -> list[Any]:
    """The different indices of one epoch, in the order of delivery."""
    batch_sampler: Any = loader.batch_sampler
    if type(batch_sampler) is BatchSampler:
        sampler: Any = batch_sampler.sampler
        return list(dict.fromkeys(islice(sampler, len(sampler))))
    batches: Iterable[Iterable[Any]] = islice(batch_sampler, len(batch_sampler))
    return list(dict.fromkeys(chain.from_iterable(batches)))


def _sorted(indices: list[Any]) -> list[Any]:
    try:
        return sorted(indices)
    except TypeError:  # keys without an order
        return indices


def _ask(sampler: Any, behavior: str) -> NoReturn:
    raise InvalidInputError(
        f"the {type(sampler).__name__} {behavior}, so the number of examples for the weight of the KL is unknown: "
        "pass num_data=, the number of different examples that training should count."
    )


def drawn(source: Iterable[Value], seed: int) -> Iterator[Value]:
    """What a source gives if it draws from torch's global generator in a state of its own, seeded by `seed`."""
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
    """The batches of this process out of those of all processes: nothing is repeated, and nothing is left out.

    Args:
        batch_sampler: The sampler of batches, which must give all processes the same ones.
    """

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
        dataset: Any = loader.dataset
        order: Sampler[int] = RandomSampler(dataset) if loader.sampler.shuffle else SequentialSampler(dataset)
        batches = BatchSampler(order, loader.batch_size or 1, loader.drop_last)
    names = "num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context generator prefetch_factor"
    kept = {name: getattr(loader, name) for name in [*names.split(), "persistent_workers"]}
    return DataLoader(loader.dataset, batch_sampler=StepSampler(batches), **kept)
