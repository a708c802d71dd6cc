import itertools

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import fsvi
from fsvi.training.batches import as_batches
from scenarios import copied, plain, points, same_bits


class Stream(IterableDataset):
    """Examples one by one, with an end or without."""

    def __init__(self, num=20, endless=False):
        self.num, self.endless = num, endless

    def __iter__(self):
        pairs = list(zip(*points(self.num), strict=True))
        return itertools.cycle(pairs) if self.endless else iter(pairs)


class Measured(Stream):
    def __len__(self):
        return self.num


def test_a_stream_trains_like_its_examples_in_order():
    streamed, loaded = plain(), plain()
    fsvi.fit(streamed, Stream(), epochs=3, batch_size=8, num_data=20)
    x, y = points()
    fsvi.fit(loaded, DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8), epochs=3)
    assert same_bits(copied(streamed), copied(loaded))
    assert streamed.num_data == 20


@pytest.mark.parametrize(
    ("data", "batches"),
    [
        (Stream(), 3),
        (Stream(endless=True), 3),
        (Measured(40), 5),
        (DataLoader(Stream(endless=True), batch_size=5), 4),
        (DataLoader(Stream(), batch_size=16, drop_last=True), 1),
    ],
)
def test_an_epoch_of_a_stream_ends(data, batches):
    assert len(list(as_batches(plain(), data, 8, num_data=20).one_pass(0))) == batches
