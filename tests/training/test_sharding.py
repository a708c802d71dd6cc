"""Which examples a process trains on."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi.training.batches import Batches, as_batches
from fsvi.training.distributed import Ranks
from fsvi.training.sharding import divided, sharded
from scenarios import dense, images, normalised, points


def rank(number, size):
    ranks = Ranks()
    ranks.rank, ranks.size = number, size
    return ranks


def shares(method, data, size, batch_size, epoch=0):
    """What each process trains on: the sizes of its steps, and all of its inputs."""
    every = []
    for number in range(size):
        whole = as_batches(method, data, batch_size)
        share = sharded(method, whole, rank(number, size), batch_size, seed=0)
        share.set_epoch(epoch)
        every.append(list(share.weighted()))
        assert len(every[-1]) == share.num_batches
        assert share.num_data == len(data[0])
    return every


@pytest.mark.parametrize(("num", "size", "batch_size"), [(20, 2, 4), (23, 2, 4), (23, 3, 5), (7, 7, 1), (100, 4, 128)])
def test_steps_are_equal_in_number_and_nearly_in_size(num, size, batch_size):
    x, y = points(num)
    every = shares(fsvi.MAP(dense(), fsvi.Categorical()), (x, y), size, batch_size)
    assert len({len(steps) for steps in every}) == 1
    for step in zip(*every, strict=True):
        lengths = [len(each[0]) for each in step]
        assert max(lengths) - min(lengths) <= 1
        assert 1 <= max(lengths) <= batch_size
    seen = torch.cat([step[0] for steps in every for step in steps])
    assert torch.equal(seen.sort(0).values, x.sort(0).values)


def test_the_order_depends_on_the_epoch_only():
    x, y = points(40)
    method = fsvi.MAP(dense(), fsvi.Categorical())
    first, again, second = (shares(method, (x, y), 2, 4, epoch)[0] for epoch in (0, 0, 1))
    assert torch.equal(first[0][0], again[0][0])
    assert not torch.equal(first[0][0], second[0][0])


def test_weights_stay_with_their_examples():
    x, y = points(20)
    weights = x[:, 0].abs() + 0.1
    method = fsvi.MAP(dense(), fsvi.Categorical())
    share = sharded(method, as_batches(method, (x, y, weights), 4), rank(1, 2), 4, seed=0)
    for inputs, _, found in share.weighted():
        torch.testing.assert_close(found, (inputs[:, 0].abs() + 0.1) / weights.mean())


def test_batch_norm_gets_two_examples_on_every_process():
    every = shares(fsvi.MAP(normalised(), fsvi.Categorical()), images(9), 2, 2)
    assert min(len(step[0]) for steps in every for step in steps) >= 2


@pytest.mark.parametrize("net", [dense, normalised])
def test_too_few_examples_are_refused(net):
    method = fsvi.MAP(net(), fsvi.Categorical())
    data = points(2) if net is dense else images(5)
    with pytest.raises(fsvi.InvalidInputError, match="shared"):
        sharded(method, as_batches(method, data, 4), rank(0, 3), 4, seed=0)


def test_unknown_kinds_of_data_are_refused():
    class Stream(Batches):
        num_examples = 10
        examples = ordered = shuffled = None

    with pytest.raises(fsvi.InvalidInputError, match="Stream"):
        sharded(fsvi.MAP(dense(), fsvi.Categorical()), Stream(), rank(0, 2), 4, seed=0)


def test_one_process_keeps_its_batches():
    method = fsvi.MAP(dense(), fsvi.Categorical())
    whole = as_batches(method, points(), 4)
    assert sharded(method, whole, Ranks(), 4, seed=0) is whole


def test_a_loader_makes_its_own_batches():
    method = fsvi.MAP(nn.Linear(2, 2), fsvi.Categorical())
    loader = DataLoader(TensorDataset(*points(22)), batch_size=5, shuffle=True)
    share = sharded(method, as_batches(method, loader, 99), rank(0, 2), 99, seed=0)
    assert [len(y) for _, y, _ in share.weighted()] == [5, 5, 1]
    assert (share.num_batches, share.num_data) == (3, 22)


@pytest.mark.parametrize(
    ("lengths", "size", "least", "wanted"),
    [
        ([4, 4, 4, 4], 2, 1, [[4, 4], [4, 4]]),
        ([4, 4, 4], 2, 1, [[4, 4], [2, 2]]),
        ([4, 4, 1], 2, 1, [[4, 5]]),
        ([4, 4, 4, 1], 2, 2, [[4, 4], [2, 3]]),
        ([4, 4, 3], 2, 2, [[6, 5]]),
        ([5], 3, 1, [[2, 1, 2]]),
    ],
)
def test_the_last_step_is_divided_evenly(lengths, size, least, wanted):
    numbers = iter(range(sum(lengths)))
    batches = [[next(numbers) for _ in range(length)] for length in lengths]
    steps = divided(batches, size, least)
    assert [[len(batch) for batch in step] for step in steps] == wanted
    assert [index for step in steps for batch in step for index in batch] == list(range(sum(lengths)))
