"""Training loops of others with the step of fsvi; each example is a file of the documentation."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(method):
    near = method.predict(torch.tensor([[0.0, 1.0], [1.0, -0.5]]))
    assert near.labels().tolist() == [0, 1]
    assert not method.training


def test_a_loop_written_by_hand():
    method, losses = load("hand_written_loop").train(epochs=15)
    check(method)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.filterwarnings("ignore")
def test_accelerate():
    pytest.importorskip("accelerate")
    method, losses = load("accelerate_loop").train(epochs=15)
    check(method)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    method, terms = load("lightning_loop").train(epochs=15)
    check(method)
    assert set(terms) == {"nll", "kl"} and terms["nll"] < 0.5
