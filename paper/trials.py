"""Trials of FSVI's recipe for FashionMNIST: 54,000 training images, 30 epochs, measured on the other 6,000.

    FSVI_DATA=... python -m paper.trials paper/studies/fashion-mnist.trials.json

A row takes about six minutes on one core that has bfloat16 in hardware. Rows in the file are not made again. No test
set is used: the images of other kinds are held-out ones, inverted in brightness, upside down, or cut into 16 shuffled
tiles.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fsvi import metrics
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Categorical
from fsvi.methods import MAP
from fsvi.networks import cnn
from fsvi.serialization import check_writable
from fsvi.validation import check_choice
from paper.experiment import Order
from paper.tasks.images import AugmentedImages, predict
from paper.tasks.registry import TASKS
from paper.tuning import held_out

_TILES = 4
_WEAK = {"prior": Constant(1.0), "kl_weight": 1 / 1280}


@dataclass(frozen=True)
class Trial:
    """What a row changes: the method's settings, those of `fit`, a layer of the network, the training data."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[nn.Sequential], None] = lambda _: None
    dataset: Callable[..., Any] | None = None


def _drop(network: nn.Sequential, share: float) -> None:
    next(layer for layer in network if isinstance(layer, nn.Dropout)).p = share


def _widen(network: nn.Sequential, units: int) -> None:
    places = [i for i, layer in enumerate(network) if isinstance(layer, nn.Linear)]
    network[places[0]] = nn.Linear(network[places[0]].in_features, units)  # type: ignore[arg-type]
    network[places[1]] = nn.Linear(units, 10)


ROWS = {
    "as in the table": Trial(),
    "256 units, as in the public code": Trial(change=partial(_widen, units=256)),
    "mirrored images": Trial(dataset=partial(AugmentedImages, shift=0)),
    "dropout .5 instead of .25": Trial(change=partial(_drop, share=0.5)),
    "twice the learning rate": Trial(fit={"lr": 2e-3}),
    "32 context points instead of 8, a quarter of the KL weight": Trial({"num_context": 32, "kl_weight": 1 / 512}),
    "prior variance 1 instead of 10, a tenth of the KL weight": Trial(_WEAK),
    "mirrored images, no dropout": Trial(dataset=partial(AugmentedImages, shift=0), change=partial(_drop, share=0.0)),
}


def shuffled(x: Tensor) -> Tensor:
    """The images cut into tiles, which are put together in another order."""
    side = x.shape[-1] // _TILES
    tiles = x.unfold(2, side, side).unfold(3, side, side).flatten(2, 3)
    order = torch.randperm(_TILES**2, generator=torch.Generator().manual_seed(0))
    rows = tiles[:, :, order].unflatten(2, (_TILES, _TILES)).permute(0, 1, 2, 4, 3, 5)
    return rows.reshape(x.shape)


def measure(trial: Trial, profile: Any = "paper", seed: int = 0) -> dict[str, float]:
    """Train with these changes, and measure on held-out images."""
    order = Order("fashion-mnist", "fsvi", profile, seed, "kmnist", trial.settings, trial.fit, precision="bf16")
    experiment, (x, y) = held_out(TASKS[order.task].experiment(order), seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = cnn(dropout=0.25)
        trial.change(network)
    method = experiment.build(seed, [MAP(network, Categorical())])  # a start from a network with new parameters
    history = replace(experiment, dataset=trial.dataset).train(method, seed, progress=False)
    p = predict(method, x, num_samples=10)
    found = {"accuracy": metrics.accuracy(p, y), "nll": metrics.nll(p, y), "ece_10": metrics.ece(p, y, bins=10)}
    for name, others in {"inverted": x.min() + x.max() - x, "flipped": x.flip(2), "shuffled": shuffled(x)}.items():
        found[f"auroc_{name}"] = metrics.ood(p.entropy(), predict(method, others, num_samples=10).entropy()).auroc
    return {**{name: round(float(value), 5) for name, value in found.items()}, "seconds": round(history.seconds)}


def main(path: Path, names: Sequence[str]) -> None:
    """Make the rows that are missing, and write the file after each of them."""
    names = [check_choice("row", name, ROWS) for name in names]
    check_writable(path.parent)
    rows = json.loads(path.read_text()) if path.exists() else {}
    for name in names or ROWS:
        if name not in rows:
            row = measure(ROWS[name])
            rows = {**(json.loads(path.read_text()) if path.exists() else {}), name: row}
            path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        print(name, rows[name], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="FashionMNIST's recipe with one change at a time, on held-out images.")
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("rows", nargs="*", help="only these rows")
    given = parser.parse_args()
    main(given.out, given.rows)
