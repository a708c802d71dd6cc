import numpy as np
import pytest
import torch

from fsvi.errors import FileFormatError
from paper.data.dataset import build, content_hash


def test_labels_become_int64_and_real_targets_a_column():
    split = build("a", "train", (np.zeros((3, 2)), np.array([0, 1, 2], np.uint8)), "note")
    assert (split.y.dtype, split.y.shape, split.note, len(split)) == (torch.int64, (3,), "note", 3)
    assert build("a", "train", (np.zeros((3, 2)), np.zeros(3))).y.shape == (3, 1)


def test_grades_from_two_on_are_the_positive_class():
    split = build("a", "test", (np.zeros((5, 2)), np.arange(5)), graded=True)
    assert split.y.tolist() == [0, 0, 1, 1, 1]
    assert split.grade is not None and split.grade.tolist() == [0, 1, 2, 3, 4]
    assert build("a", "test", (np.zeros((5, 2)), np.arange(5))).grade is None


@pytest.mark.parametrize(("inputs", "labels", "keyword"), [(0, 0, "no examples"), (3, 2, "labels")])
def test_counts_that_cannot_be_right(inputs, labels, keyword):
    with pytest.raises(FileFormatError, match=keyword):
        build("a", "test", (np.zeros((inputs, 2)), np.zeros(labels, np.int64)))


def test_the_hash_depends_on_type_shape_and_values_only():
    a = np.arange(6.0).reshape(2, 3)
    assert content_hash(a) == content_hash(np.asfortranarray(a))
    others = (a + 1e-9, a.reshape(3, 2), a.astype(np.float32))
    assert len({content_hash(a), *map(content_hash, others)}) == 4


def test_read_only_arrays_become_writable_tensors():
    x = np.zeros((2, 2))
    x.flags.writeable = False
    build("a", "train", (x, np.zeros(2))).x.add_(1)
    assert x.sum() == 0
