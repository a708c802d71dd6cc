"""Coverage of conformal sets and intervals over 200 random splits, next to the bounds that theory gives.

    python docs/examples/conformal_coverage.py

A classifier is trained on 797 digits and a regressor on 142 rows of the diabetes data. The other rows are divided at
random, 200 times, into held-out rows that calibrate and test rows. If rows have no equal scores, the number of covered
test rows has a Beta-binomial distribution, so the mean over splits has a known standard error. About two minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import scipy.stats
import torch
from sklearn.datasets import load_diabetes, load_digits

import fsvi
from fsvi.calibration import APS, LAC, Calibration, ConformalIntervals, TemperatureScaling, VarianceScaling

SPLITS = 200
ALPHAS = (0.2, 0.1, 0.05)
STEPS: dict[str, dict[str, Callable[[], list[Any]]]] = {
    "digits": {
        "LAC": lambda: [LAC()],
        "APS": lambda: [APS()],
        "APS, randomized": lambda: [APS(randomized=True)],
        "temperature, then LAC": lambda: [TemperatureScaling(), LAC()],
    },
    "diabetes": {
        "intervals": lambda: [ConformalIntervals()],
        "variance, then intervals": lambda: [VarianceScaling(), ConformalIntervals()],
    },
}


def predictions(name: str) -> tuple[Any, Any]:
    """Predictions and targets of rows that the model has not seen."""
    load, make, rows = {
        "digits": (load_digits, fsvi.FSVIClassifier, 797),
        "diabetes": (load_diabetes, fsvi.FSVIRegressor, 142),
    }[name]
    x, y = load(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).numpy()
    train, rest = order[:rows], order[rows:]
    model = make(random_state=0).fit(x[train], y[train])
    return model.predictive(x[rest]), torch.as_tensor(y[rest])


def split(p: Any, y: Any, steps: list[Any], seed: int) -> tuple[int, list[tuple[float, float]]]:
    """Rows of the conformal step; for each α the share of covered test rows and the mean size of sets or intervals."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    first, rest = order.tensor_split(2)
    calibration = Calibration(steps).fit(p[first], y[first], seed)
    test, targets, found = p[rest], y[rest], []
    for alpha in ALPHAS:
        if isinstance(calibration.conformal, ConformalIntervals):
            lower, upper = calibration.intervals(test, alpha)
            inside, size = (lower <= targets) & (targets <= upper), upper - lower
        else:
            sets = calibration.sets(test, alpha)
            inside, size = sets.gather(1, targets[:, None]), sets.sum(1)
        found.append((float(inside.double().mean()), float(size.double().mean())))
    return len(calibration.conformal.scores), found  # type: ignore[union-attr]


def report(name: str, steps: str, alpha: float, num: int, num_test: int, found: list[tuple[float, float]]) -> str:
    """A row of the table: mean coverage over splits, the bounds, and how far the mean is from what theory expects."""
    shares = torch.tensor(found, dtype=torch.float64)[:, 0]
    rank = math.ceil(round((num + 1) * (1 - alpha), 9))
    law = scipy.stats.betabinom(num_test, rank, num + 1 - rank)
    expected, error = rank / (num + 1), law.std() / num_test / math.sqrt(len(found))
    size = sum(each for _, each in found) / len(found)
    bounds = f"{1 - alpha:.4f}–{1 - alpha + 1 / (num + 1):.4f}"
    distance = (float(shares.mean()) - expected) / error
    return (
        f"| {name} | {steps} | {1 - alpha:.0%} | {num} | {shares.mean():.4f} | {bounds} | {error:.4f} "
        f"| {distance:+.1f} | {shares.std():.4f} / {law.std() / num_test:.4f} | {size:.3g} |"
    )


def main() -> None:
    """Print the table."""
    print(
        "| data | steps | level | rows | coverage | bounds | standard error | distance | spread / theory | mean size |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, kinds in STEPS.items():
        p, y = predictions(name)
        for steps, make in kinds.items():
            runs = [split(p, y, make(), seed) for seed in range(SPLITS)]
            for index, alpha in enumerate(ALPHAS):
                num_test = len(y) - math.ceil(len(y) / 2)
                print(report(name, steps, alpha, runs[0][0], num_test, [found[index] for _, found in runs]), flush=True)


if __name__ == "__main__":
    main()
