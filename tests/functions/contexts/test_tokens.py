import pytest
import torch

from fsvi.functions import contexts
from fsvi.inputs import Bundle, bundle
from fsvi.validation import as_tensor

IDS = torch.arange(1, 13).reshape(2, 6)
MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])


def text() -> Bundle:
    return bundle({"input_ids": IDS, "attention_mask": MASK, "other": torch.ones(2, 3)}, as_tensor)


def test_shuffled_tokens_are_the_texts_tokens_in_another_order():
    torch.manual_seed(0)
    points = contexts.ShuffledTokens().sample(50, text())
    source = (points["input_ids"].amax(1) > 6).long()
    assert torch.equal(points["input_ids"].sort(1)[0], IDS[source])
    padding = MASK[source] == 0
    assert torch.equal(points["input_ids"][padding], IDS[source][padding])
    assert torch.equal(points["attention_mask"], MASK[source])
    assert points["other"].shape == (50, 3)
    assert len({tuple(row) for row in points["input_ids"].tolist()}) > 20


@pytest.mark.parametrize("token", [0, None])
def test_replaced_tokens(token):
    torch.manual_seed(0)
    points = contexts.ReplacedTokens(0.25, token).sample(2_000, text())
    source = (points["attention_mask"].sum(1) == 6).long()
    changed = points["input_ids"] != IDS[source]
    assert not changed[points["attention_mask"] == 0].any()
    share = changed[points["attention_mask"] == 1].double().mean()
    drawn_alike = 0 if token == 0 else 1 / 10  # of ten tokens, each with about the same frequency
    assert share == pytest.approx(0.25 * (1 - drawn_alike), abs=0.02)
    known = {token} if token == 0 else set(IDS[MASK == 1].tolist())
    assert set(points["input_ids"][changed].tolist()) <= known


ROWS = [{"input_ids": IDS[i % 2] + i, "attention_mask": MASK[i % 2], "labels": i} for i in range(5)]


@pytest.mark.parametrize(
    "data",
    [
        {"input_ids": IDS, "attention_mask": MASK, "labels": torch.zeros(2)},
        ROWS,
        [({"input_ids": IDS[0], "attention_mask": MASK[0]}, 1)],
    ],
    ids=["tensors", "rows", "pairs"],
)
def test_other_texts_as_context(data):
    batch = bundle({"input_ids": IDS, "attention_mask": MASK}, as_tensor)
    points = contexts.Dataset(data).sample(4, batch)
    assert set(points.tree) == {"input_ids", "attention_mask"}
    assert points["input_ids"].shape == (4, 6)
    mixed = contexts.Mixture([contexts.Batch(), contexts.Dataset(data)], [0.5, 0.5]).sample(4, batch)
    assert mixed["input_ids"].shape == (4, 6)
    assert {tuple(row) for row in mixed["input_ids"][:2].tolist()} <= {tuple(row) for row in IDS.tolist()}
