import errno
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors

import fsvi
import scenarios
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.serialization import Configurable, digest, read_tree, write_bytes, write_tree
from scenarios import same_bits

TREE = {
    "text": "ἐπιστήμη",
    "numbers": [1, -2.5, float("inf"), None, True, 10**30],
    "nested": {"empty": {}, "none": [], "by number": {0: {"step": torch.tensor(3.0)}, 7: "seven"}},
    "tensors": {
        "weight": torch.arange(6.0).reshape(2, 3).T,
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "expanded": torch.tensor(1.5).expand(1),
        "empty": torch.zeros(0),
        "half": torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "state": torch.get_rng_state(),
    },
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tree.fsvi"
    write_tree(path, TREE, "a tree")
    return path


def forge(path, tree_text, tensors=None, **metadata):
    """A file with a right checksum and whatever contents."""
    tensors = tensors or {}
    fields = {"fsvi": tree_text, "format": "1", "kind": "a tree", "sha256": digest(tensors, tree_text), **metadata}
    path.write_bytes(save_safetensors(tensors, fields))


# There and back


def test_a_tree_comes_back_bit_by_bit(path):
    assert same_bits(read_tree(path, "a tree"), TREE)
    assert read_tree(path, "a tree")["nested"]["by number"][7] == "seven"


def test_what_would_need_pickle_is_refused_by_name(tmp_path):
    for value in ({1, 2}, object(), lambda: 0, np.zeros(2), b"bytes"):
        with pytest.raises(InvalidInputError, match=f"/a/0.*{type(value).__name__}"):
            write_tree(tmp_path / "file", {"a": [value]}, "kind")
    assert list(tmp_path.iterdir()) == []


# Spoiled files; tests/reliability damages more of them


def expect_refusal(path, contents):
    path.write_bytes(contents)
    with pytest.raises(FileFormatError) as caught:
        read_tree(path, "a tree")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_strange_headers_and_forged_trees_with_a_right_checksum(path):
    headers = (
        b"[" * 100_000 + b"]" * 100_000,
        b"[]",
        b'{"__metadata__": []}',
        b'{"x": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}',
        b'{"x": {"dtype": "nonsense", "shape": [1], "data_offsets": [0, 4]}}',
        b"\xff\xfe",
    )
    for header in headers:
        expect_refusal(path, len(header).to_bytes(8, "little") + header + b"\0" * 4)
        expect_refusal(path, len(header).to_bytes(8, "little") + header)
    for text in ("[" * 100_000 + "]" * 100_000, "not json", '{"$tensor": "absent"}', '{"$int": {"a": 1}}'):
        forge(path, text)
        expect_refusal(path, path.read_bytes())


# Writing


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, step, error):
    target = tmp_path / "file"
    write_bytes(target, b"old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    full = isinstance(error, OSError)
    with pytest.raises(InvalidInputError if full else KeyboardInterrupt) as caught:
        write_bytes(target, b"new")
    if full:
        assert str(target) in str(caught.value) and "No space left on device" in str(caught.value)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_digest_sees_names_types_shapes_and_values():
    x = torch.zeros(2, 3)
    others = [{"y": x}, {"x": x.double()}, {"x": x.T}, {"x": x + 1}, {"x": x, "y": x}]
    assert len({digest({"x": x}), digest({"x": x}, "text"), *(digest(other) for other in others)}) == 7
    assert digest({"x": x.T.contiguous().T}) == digest({"x": x})


# Objects


class Part(Configurable):
    def __init__(self, bounds, size=3):
        self.bounds, self.size = bounds, size


class Whole(Configurable):
    _transient = ("data",)

    def __init__(self, data, parts=(), name="whole"):
        self.data, self.parts, self.name = data, parts, name


@pytest.mark.parametrize("bounds", [[1.0, 2.0], (1.0, 2.0), np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])])
def test_an_object_is_its_constructors_arguments(bounds):
    config = json.loads(json.dumps(Whole("much", [Part(bounds), Part(1.0, size=np.int64(4))]).config()))
    built = Configurable.from_config(config)
    assert (built.data, built.name) == (None, "whole")
    assert [(part.bounds, part.size) for part in built.parts] == [([1.0, 2.0], 3), (1.0, 4)]
    assert Configurable.from_config(config, data="less").data == "less"


def test_a_users_class_of_the_same_name_does_not_replace_ours(tmp_path):
    """Files name fsvi's own classes by their names, and all others with their modules."""

    class Categorical(fsvi.likelihoods.Likelihood):
        def check_targets(self, y, num_outputs):
            raise NotImplementedError

        nll = predictive = check_targets

    class Dataset(fsvi.contexts.Context):
        def sample(self, num, batch):
            return batch[:num]

    method = scenarios.classifier(context=fsvi.contexts.Dataset(torch.zeros(4, 2)))
    method.save(tmp_path / "ours.fsvi")
    loaded = fsvi.load(tmp_path / "ours.fsvi")
    assert type(loaded.likelihood) is fsvi.Categorical and type(loaded.context) is fsvi.contexts.Dataset
    own = scenarios.classifier(context=Dataset())
    own.save(tmp_path / "own.fsvi")
    assert type(fsvi.load(tmp_path / "own.fsvi").context) is Dataset
