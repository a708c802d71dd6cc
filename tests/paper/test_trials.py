"""Trials of FSVI's recipe for FashionMNIST, on made-up images."""

import json

import torch
from torch import nn

from fsvi.networks import cnn
from paper import trials
from pictures import pretend


def test_every_row_is_measured_once_on_held_out_images(monkeypatch, tmp_path):
    asked = pretend(monkeypatch)
    monkeypatch.setattr(trials, "measure", lambda trial, measure=trials.measure: measure(trial, "smoke"))
    names = ["256 units, as in the public code", "mirrored images, no dropout"]
    trials.main(tmp_path / "trials.json", names)
    rows = json.loads((tmp_path / "trials.json").read_text())
    assert list(rows) == names and all(split == "train" or name == "kmnist" for name, split in asked)
    assert {"accuracy", "nll", "ece_10", "auroc_inverted", "auroc_flipped", "auroc_shuffled"} <= set(rows[names[0]])
    monkeypatch.setattr(trials, "measure", None)  # rows in the file are not made again
    trials.main(tmp_path / "trials.json", names)


def test_changes_reach_the_network():
    network = cnn(dropout=0.25)
    trials.ROWS["256 units, as in the public code"].change(network)
    trials.ROWS["dropout .5 instead of .25"].change(network)
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert [layer.p for layer in network if isinstance(layer, nn.Dropout)] == [0.5]
    assert [layer.out_features for layer in network if isinstance(layer, nn.Linear)] == [256, 10]
