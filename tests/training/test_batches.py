from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
)

import fsvi
from fsvi.training.batches import as_batches
from scenarios import dense, images, normalised, points


class Points(Dataset[Any]):
    """A map-style dataset that is not a TensorDataset."""

    def __init__(self, num: int = 20) -> None:
        self.x, self.y = points(num)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Triples(Points):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), 1)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return zip(*points(), strict=True)


@pytest.fixture
def method() -> fsvi.MAP:
    return fsvi.MAP(dense(), fsvi.Categorical())


def rows(batches: Any) -> list[list[float]]:
    return sorted(x.tolist() for batch, _ in batches for x in batch)


@pytest.mark.parametrize("batch_size", [1, 6, 19, 20, 100])
def test_an_epoch_of_tensors_has_every_pair_once(method, batch_size):
    x, y = points()
    batches = as_batches(method, (x, y), batch_size)
    epoch = list(batches.shuffled())
    assert len(epoch) == batches.num_batches
    assert max(len(part) for part, _ in epoch) <= batch_size
    assert rows(epoch) == sorted(x.tolist())
    labels = {tuple(row.tolist()): int(label) for row, label in zip(x, y, strict=True)}
    assert all(labels[tuple(row.tolist())] == label for part, ys in epoch for row, label in zip(part, ys, strict=True))


def test_batches_are_of_equal_size_so_that_no_example_weighs_more(method):
    sizes = [len(x) for x, _ in as_batches(method, points(129), 128).shuffled()]
    assert sizes == [65, 64]


def test_the_order_is_drawn_anew_each_epoch_from_torchs_generator(method):
    batches = as_batches(method, points(), 6)
    torch.manual_seed(3)
    first, second = (torch.cat([x for x, _ in batches.shuffled()]) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, torch.cat([x for x, _ in batches.shuffled()]))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: [x.tolist(), y.tolist()],
        lambda x, y: (x.double().numpy(), y.int().numpy()),
        lambda x, y: (x, y[:, None]),
        lambda x, y: TensorDataset(x, y),
    ],
    ids=["numpy", "lists", "float64", "column", "TensorDataset"],
)
def test_what_can_become_tensors_becomes_the_same_tensors(method, convert):
    x, y = points()
    batches = as_batches(method, convert(x, y), 8)
    assert torch.equal(batches.examples()[0], x) and torch.equal(batches.examples()[1], y)
    assert batches.examples()[0].dtype == torch.float32


def test_images_come_in_channels_last_layout():
    method = fsvi.MAP(normalised(), fsvi.Categorical())
    for x, _ in as_batches(method, images(), 8).shuffled():
        assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, batch_size=8, shuffle=True)])
def test_a_dataset_or_its_loader_gives_every_example_once(method, wrap):
    batches = as_batches(method, wrap(Points()), 8)
    assert (batches.num_data, batches.num_batches) == (20, 3)
    assert rows(batches.shuffled()) == rows(batches.ordered()) == sorted(points()[0].tolist())


def test_examples_of_a_large_dataset_are_a_sample_spread_over_it(method):
    x, _ = as_batches(method, Points(9_000), 8).examples()
    assert 1_000 < len(x) <= 2_000
    assert torch.equal(x[-1], points(9_000)[0][8_995])


def test_examples_of_large_inputs_are_fewer(method, monkeypatch):
    monkeypatch.setattr("fsvi.training.batches._SAMPLED_BYTES", 100 * points(1)[0].nbytes)
    assert len(as_batches(method, Points(9_000), 8).examples()[0]) == 100


@pytest.mark.parametrize("num", [3, 5, 9])
def test_no_batch_of_one_reaches_batch_norm(num):
    method = fsvi.MAP(normalised(), fsvi.Categorical())
    x, y = images(num)
    tensors = as_batches(method, (x, y), 2)
    loader = as_batches(method, DataLoader(TensorDataset(x, y), batch_size=2), 8)
    for batches in (tensors, loader):
        sizes = [len(part) for part, _ in batches.shuffled()]
        assert min(sizes) >= 2 and sum(sizes) == num and len(sizes) == batches.num_batches
    plain = fsvi.MAP(dense(), fsvi.Categorical())
    assert [len(part) for part, _ in as_batches(plain, DataLoader(Points(5), batch_size=2), 8).shuffled()] == [2, 2, 1]


def test_batches_of_one_stay_where_all_of_them_are(method):
    method = fsvi.MAP(normalised(), fsvi.Categorical())
    loader = DataLoader(TensorDataset(*images(4)), batch_size=1)
    assert [len(part) for part, _ in as_batches(method, loader, 8).shuffled()] == [1] * 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (points()[0], "Tensor"),
        ((*points(), 1, 2), "tuple of 4"),
        (None, "NoneType"),
        (Points(0), "Points.*empty"),
        (TensorDataset(points()[0]), "tuple of 1"),
        (Stream(), "Stream.*length"),
        (DataLoader(Stream()), "Stream.*length"),
        (DataLoader(Points(), batch_size=None), "batch_size=None"),
        (DataLoader(Points(), batch_size=21, drop_last=True), "batch_size=21"),
        (DataLoader(Points(), sampler=SubsetRandomSampler([])), "sampler"),
    ],
)
def test_data_that_cannot_be_used_is_named(method, data, message):
    with pytest.raises(fsvi.InvalidInputError, match=message):
        as_batches(method, data, 8)


def test_a_loader_of_other_than_pairs_is_refused(method):
    for loader in (DataLoader(Triples()), DataLoader(points()[0])):
        with pytest.raises(fsvi.InvalidInputError, match=r"DataLoader.*\(inputs, targets\)"):
            as_batches(method, loader, 8).examples()


def test_a_bad_batch_is_found_when_it_comes(method):
    data = Points(9_000)
    data.x[1, 0] = np.nan
    batches = as_batches(method, DataLoader(data, batch_size=100), 8)
    batches.examples()
    with pytest.raises(fsvi.InvalidInputError, match="1 NaN"):
        list(batches.shuffled())


def test_the_fingerprint_changes_with_every_value(method):
    x, y = points()
    prints = {as_batches(method, data, 8).fingerprint for data in ((x, y), (x + 1e-6, y), (x, 1 - y), (x[:19], y[:19]))}
    assert len(prints) == 4
    assert as_batches(method, (x.clone(), y), 3).fingerprint in prints


def test_weights_go_with_their_examples(method: fsvi.MAP) -> None:
    x, y = points()
    weights = torch.arange(len(x)) % 4
    batches = as_batches(method, (x, y, weights), 3)
    assert batches.num_data == int(weights.sum())
    places = {tuple(row.tolist()): i for i, row in enumerate(batches.examples()[0])}
    seen = 0
    for rows, _, given in batches.weighted():
        index = [places[tuple(row.tolist())] for row in rows]
        assert given is not None
        torch.testing.assert_close(given, (weights[index] / weights.double().mean()).to(given))
        seen += len(rows)
    assert seen == len(x)
    values = torch.randn(len(x), dtype=torch.float64)
    assert batches.mean(values) == pytest.approx(float((values * weights).sum() / weights.sum()))


@pytest.mark.parametrize("weights", [[1.0], np.full(len(points()[0]), -1.0), np.zeros(len(points()[0]))])
def test_weights_that_cannot_be_used_are_named(method: fsvi.MAP, weights: Any) -> None:
    with pytest.raises(fsvi.InvalidInputError, match="weights"):
        as_batches(method, (*points(), weights), 3)


def test_methods_that_cannot_weigh_say_so() -> None:
    method = fsvi.Laplace(dense(), fsvi.Categorical())
    with pytest.raises(fsvi.InvalidInputError, match="Laplace"):
        as_batches(method, (*points(), torch.ones(len(points()[0]))), 3)
