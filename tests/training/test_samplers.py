from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import fsvi
from fsvi.training.batches import as_batches
from scenarios import Points, dense, points


@pytest.fixture
def method() -> fsvi.MAP:
    return fsvi.MAP(dense(), fsvi.Categorical())


def test_examples_that_a_sampler_leaves_out_are_neither_seen_nor_counted(method):
    chosen = [0, 3, 5, 7]
    loader = DataLoader(Points(), batch_size=2, sampler=SubsetRandomSampler(chosen))
    batches = as_batches(method, loader, 8)
    assert batches.num_data == 4
    assert torch.equal(batches.examples()[0], points()[0][chosen])
    assert as_batches(method, DataLoader(Subset(Points(), chosen)), 8).num_data == 4


class Odd(Sampler[int]):
    """Every other example, in a fixed order; a sampler that fsvi has never heard of."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return len(range(1, self.size, 2))

    def __iter__(self) -> Any:
        return iter(range(1, self.size, 2))


KNOWN = {
    "shuffled_drop_last": ({"shuffle": True, "drop_last": True}, 20),
    "sequential_drop_last": ({"drop_last": True}, 18),
    "random_over_a_third_with_replacement": ({"sampler": RandomSampler(range(7), replacement=True)}, 7),
    "subset": ({"sampler": SubsetRandomSampler([0, 3, 5, 7])}, 4),
    "weighted": ({"sampler": WeightedRandomSampler([0.0] * 15 + [1, 2, 3, 4, 5], 20)}, 5),
    "list": ({"sampler": [2, 4, 6]}, 3),
    "unknown_sampler": ({"sampler": Odd(20)}, 10),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_number_of_examples_is_what_the_sampler_can_deliver(method, name):
    settings, expected = KNOWN[name]
    batches = as_batches(method, DataLoader(Points(), batch_size=3, **settings), 8)
    assert batches.num_data == expected
    assert len(batches.examples()[0]) == expected


UNKNOWN = {
    "a_third_drawn_each_epoch": RandomSampler(range(20), num_samples=7),
    "few_weighted": WeightedRandomSampler([1.0] * 20, 7),
    "distributed": DistributedSampler(range(20), num_replicas=2, rank=0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_number_of_examples_that_cannot_be_known_is_asked_for(method, name):
    loader = DataLoader(Points(), batch_size=3, sampler=UNKNOWN[name])
    with pytest.raises(fsvi.errors.InvalidInputError, match="num_data"):
        as_batches(method, loader, 8)
    batches = as_batches(method, loader, 8, num_data=20)
    assert batches.num_data == 20
    assert set(map(tuple, batches.examples()[0].tolist())) <= set(map(tuple, points()[0].tolist()))
