from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi.training.batches import as_batches
from scenarios import Points, dense, images, normalised, points


@pytest.fixture
def method() -> fsvi.MAP:
    return fsvi.MAP(dense(), fsvi.Categorical())


def rows(batches: Any) -> list[list[float]]:
    return sorted(x.tolist() for batch in batches for x in batch.x)


def sizes(batches: Any) -> list[int]:
    return [len(batch.y) for batch in batches.one_pass(0)]


@pytest.mark.parametrize("batch_size", [1, 6, 19, 20, 100])
def test_an_epoch_of_tensors_has_every_pair_once(method, batch_size):
    x, y = points()
    batches = as_batches(method, (x, y), batch_size)
    epoch = list(batches.one_pass(0))
    assert len(epoch) == batches.num_batches
    assert max(len(part.y) for part in epoch) <= batch_size
    assert rows(epoch) == sorted(x.tolist())
    labels = {tuple(row.tolist()): int(label) for row, label in zip(x, y, strict=True)}
    assert all(
        labels[tuple(row.tolist())] == label for part in epoch for row, label in zip(part.x, part.y, strict=True)
    )


def test_the_order_depends_on_the_seed_and_on_nothing_else(method):
    batches = as_batches(method, points(), 6)
    loader = as_batches(method, DataLoader(Points(), batch_size=6, shuffle=True), 6)
    for source in (batches, loader):
        before = torch.get_rng_state()
        first, again, second = (torch.cat([b.x for b in source.one_pass(seed)]) for seed in (3, 3, 4))
        assert torch.equal(first, again) and not torch.equal(first, second)
        assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, batch_size=8, shuffle=True)])
def test_a_dataset_or_its_loader_gives_every_example_once(method, wrap):
    batches = as_batches(method, wrap(Points()), 8)
    assert (batches.num_data, batches.num_batches) == (20, 3)
    assert rows(batches.one_pass(0)) == sorted(points()[0].tolist())


@pytest.mark.parametrize("num", [3, 5, 9])
def test_no_batch_of_one_reaches_batch_norm(num):
    method = fsvi.MAP(normalised(), fsvi.Categorical())
    x, y = images(num)
    tensors = as_batches(method, (x, y), 2)
    loader = as_batches(method, DataLoader(TensorDataset(x, y), batch_size=2), 8)
    for batches in (tensors, loader):
        assert min(sizes(batches)) >= 2 and sum(sizes(batches)) == num and len(sizes(batches)) == batches.num_batches
    plain = fsvi.MAP(dense(), fsvi.Categorical())
    assert sizes(as_batches(plain, DataLoader(Points(5), batch_size=2), 8)) == [2, 2, 1]


def test_a_bad_batch_is_found_when_it_comes(method):
    data = Points(9_000)
    data.x[1, 0] = np.nan
    batches = as_batches(method, DataLoader(data, batch_size=100), 8)
    batches.examples()
    with pytest.raises(fsvi.errors.InvalidInputError, match="1 NaN"):
        list(batches.one_pass(0))


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
    for x_part, _, given, _ in batches.one_pass(0):
        index = [places[tuple(row.tolist())] for row in x_part]
        assert given is not None
        torch.testing.assert_close(given, (weights[index] / weights.double().mean()).to(given))
        seen += len(x_part)
    assert seen == len(x)


# Structured batches ---------------------------------------------------------------------------------------------------


class Texts(nn.Module):
    """The average embedding of a text → two classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, input_ids, attention_mask):
        weight = attention_mask[..., None]
        return self.fc((self.embed(input_ids) * weight).sum(1) / weight.sum(1))


def text(lengths):
    longest = max(lengths)
    mask = torch.tensor([[int(i < length) for i in range(longest)] for length in lengths])
    return {"input_ids": torch.randint(1, 9, mask.shape) * mask, "attention_mask": mask}


def text_method(**settings):
    return fsvi.FSVI(Texts(), fsvi.Categorical(), fsvi.contexts.Batch(), num_context=4, **settings)


def as_batch(rows):
    """Texts padded to the longest of the batch, with their labels."""
    return {**text([row[0] for row in rows]), "labels": torch.tensor([row[1] for row in rows])}


@pytest.mark.parametrize("settings", [{"linearize": "jvp"}, {"linearize": "conditional"}, {"stochastic": "last_layer"}])
def test_batches_of_texts_of_different_lengths(settings):
    rows = [(3 + i % 5, i % 2) for i in range(20)]
    loader = DataLoader(rows, batch_size=4, collate_fn=as_batch)
    lengths = {batch["input_ids"].shape for batch in loader}
    assert len(lengths) > 1
    method = text_method(**settings)
    assert len(fsvi.fit(method, loader, epochs=2, progress=False).loss) == 2
    for batch in loader:
        x = {key: value for key, value in batch.items() if key != "labels"}
        assert method.predict(x, 3).mean.shape == (4, 2)


@pytest.mark.parametrize(
    ("data", "unpack", "said"),
    [
        ({"input_ids": torch.ones(2, 3)}, "stars", "stars"),
        (DataLoader([(torch.ones(3), 1)]), "stars", "stars"),
        (({"input_ids": torch.ones(2, 3, dtype=torch.long)}, torch.arange(2)), None, "attention_mask"),
        (({**text([2, 3]), "more": torch.ones(2)}, torch.arange(2)), None, "'more'"),
        (({"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(3, 3)}, torch.arange(2)), None, "different"),
    ],
)
def test_wrong_structured_data_is_explained(data, unpack, said):
    with pytest.raises(fsvi.errors.InvalidInputError, match=said):
        fsvi.fit(text_method(), data, unpack=unpack, epochs=1, progress=False)
