"""Which examples of its dataset a DataLoader can deliver.

N, the number of examples that the KL is weighed by, is the number of *different* examples that training can meet, over
all epochs. A sampler that leaves examples out makes it smaller than the dataset. Repetitions and weights do not change
it: an example that is drawn twice is still one example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NoReturn

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fsvi.errors import InvalidInputError


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
    with random_states_kept(loader):
        first = _one_epoch(loader)
        if required and set(first) != set(_one_epoch(loader)):
            plain = type(loader.batch_sampler) is BatchSampler
            _ask(loader.sampler if plain else loader.batch_sampler, "delivers other examples in each epoch")
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


@contextmanager
def random_states_kept(loader: DataLoader[Any]) -> Iterator[None]:
    """Afterwards, torch's global generator and those that the loader holds have the states they had before."""
    generators = owned_generators(loader)
    states = [generator.get_state() for generator in generators]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _ask(sampler: Any, behavior: str) -> NoReturn:
    raise InvalidInputError(
        f"the {type(sampler).__name__} {behavior}, so the number of examples for the weight of the KL is unknown: "
        "pass num_data=, the number of different examples that training should count."
    )
