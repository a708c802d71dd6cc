import pytest
import torch

from compat.graphs import rings
from fsvi.errors import InvalidInputError
from fsvi.inputs import Bundle, Graphs, bundle, concatenate
from fsvi.validation import as_tensor, check_inputs


def made(x) -> Bundle:
    return bundle(x, as_tensor)


NESTED = {"b": torch.arange(6).reshape(3, 2), "a": (torch.randn(3), {"c": torch.ones(3, 2, 2)})}


def test_examples_of_all_tensors_are_taken_together():
    x = made(NESTED)
    assert len(x) == 3
    assert [name for name, _ in x.named_leaves()] == ["a.0", "a.1.c", "b"]
    for index in (slice(1, 3), torch.tensor([2, 0]), slice(None, None, 2)):
        assert torch.equal(x[index]["b"], NESTED["b"][index])
        assert torch.equal(x[index].tree["a"][1]["c"], NESTED["a"][1]["c"][index])
    assert [len(part) for part in x.split(2)] == [2, 1]
    assert torch.equal(x.split(2)[1]["b"], NESTED["b"][2:])
    assert x.nbytes == sum(leaf.nbytes for leaf in x.leaves())
    assert x.to("meta").device.type == "meta"


def test_wrong_structures_are_explained():
    wrong = {
        "'a' has 2, 'b' has 3": {"a": torch.ones(2, 1), "b": torch.ones(3, 1)},
        "no tensors": {},
        "a": {"a": "text"},
        "'a' have 2 NaN": {"a": torch.full((2, 1), torch.nan)},
    }
    for said, x in wrong.items():
        with pytest.raises(InvalidInputError, match=said):
            check_inputs(x, torch.float32)


def test_concatenation_is_the_inverse_of_splitting():
    x = made(NESTED)
    joined = concatenate(x.split(1))
    assert all(torch.equal(a, b) for a, b in zip(joined.leaves(), x.leaves(), strict=True))
    assert torch.equal(concatenate([torch.ones(1, 2), torch.zeros(2, 2)]), torch.tensor([[1.0, 1], [0, 0], [0, 0]]))


def test_texts_of_different_lengths_are_padded_where_a_mask_says_so():
    short, long = (
        made({"ids": torch.full((1, length), 7), "mask": torch.ones(1, length, dtype=torch.long)}) for length in (2, 4)
    )
    joined = concatenate([short, long])
    assert joined["ids"].tolist() == [[7, 7, 0, 0], [7, 7, 7, 7]]
    assert joined["mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    with pytest.raises(InvalidInputError, match="one length"):
        concatenate([made({"ids": torch.ones(1, length)}) for length in (2, 4)])


# Graphs ---------------------------------------------------------------------------------------------------------------


def same_graphs(a, b):
    pairs = zip(a.examples(), b, strict=True)
    return all(torch.equal(one[key], other[key]) for one, other in pairs for key in ("x", "edge_index"))


def test_graphs_are_taken_out_of_a_batch_and_joined_again():
    batch = rings(6, 2)
    graphs, x = batch.to_data_list(), made(batch)
    assert isinstance(x, Graphs) and len(x) == 6
    assert "y" in batch and "y" not in x.tree
    chosen = x[torch.tensor([4, 1])]
    assert same_graphs(chosen, [graphs[4], graphs[1]]) and chosen["batch"].bincount().tolist() == [3, 4]
    assert same_graphs(x[torch.arange(6) > 3], graphs[4:]) and same_graphs(x[::2], graphs[::2])
    assert [len(part) for part in x.split(4)] == [4, 2]
    assert same_graphs(concatenate(x.split(4)), graphs)
    assert x.to("cpu") is x and x.nbytes == sum(leaf.nbytes for leaf in x.leaves())
