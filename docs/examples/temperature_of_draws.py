"""What to divide by a temperature: every draw's logits, or the log of the averaged probabilities?

    python docs/examples/temperature_of_draws.py

Half of each table trains a classifier, a quarter fits the temperatures, a quarter tests them. Each pair of results is
the negative log-likelihood of the test rows, and the normalized entropy after every column was shifted by 8 standard
deviations, up or down at random. About three minutes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

import fsvi
from fsvi.calibration import TemperatureScaling
from fsvi.likelihoods import CategoricalPredictive
from fsvi.metrics import nll


def averaged(p: CategoricalPredictive) -> CategoricalPredictive:
    """The averaged probabilities as a single draw."""
    return CategoricalPredictive(p.mean.log()[None])


def describe(p: CategoricalPredictive, y: Any, far: CategoricalPredictive) -> str:
    """The negative log-likelihood of the test rows, and the normalized entropy far away."""
    entropy = float(far.entropy().mean()) / math.log(far.mean.shape[1])
    return f"{nll(p, y):.3f}, {entropy:.2f}"


def compare(load: Any, seed: int) -> str:
    """Temperatures and results of one table, as cells of a row."""
    x, y = load(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).numpy()
    train, held, test = order[: len(x) // 2], order[len(x) // 2 : 3 * len(x) // 4], order[3 * len(x) // 4 :]
    model = fsvi.FSVIClassifier(random_state=seed, epochs=100).fit(x[train], y[train])
    signs = 2 * torch.randint(2, x[test].shape, generator=torch.Generator().manual_seed(0)).numpy() - 1
    held_out, p = model.predictive(x[held]), model.predictive(x[test])
    far = model.predictive(x[test] + 8 * signs * x[train].std(0))
    draws, pooled = TemperatureScaling().fit(held_out, y[held]), TemperatureScaling().fit(averaged(held_out), y[held])
    cells = [
        f"{draws.temperature:.2f}, {pooled.temperature:.2f}",
        describe(p, y[test], far),
        describe(draws(p), y[test], draws(far)),
        describe(pooled(averaged(p)), y[test], pooled(averaged(far))),
    ]
    return " | ".join(cells)


if __name__ == "__main__":
    heads = "table", "seed", "T of draws, of average", "not scaled", "draws scaled", "average scaled"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, load in {"wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}.items():
        for seed in range(2):
            print(f"| {name} | {seed} | {compare(load, seed)} |", flush=True)
