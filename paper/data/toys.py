"""The paper's regressions with one input: Snelson, OAT-1D and subspace.

- Snelson: see `fsvi.data.snelson`.
- OAT-1D: generated as in J. van Amersfoort et al., "On Feature Collapse and Deep Kernel Learning for Single Forward
  Pass Uncertainty", 2021.
- `subspace.csv`: the 400 points of P. Izmailov et al., "Subspace Inference for Bayesian Deep Learning", UAI 2019,
  BSD-2 license.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fsvi


@dataclass(frozen=True)
class Standardize:
    """z = (v − mean) / std, with numbers or one per column; the default is the identity."""

    mean: float | Tensor = 0.0
    std: float | Tensor = 1.0

    @classmethod
    def of(cls, values: Tensor) -> Standardize:
        """The statistics of each column of a table (n, d); constant columns are only centered."""
        std = values.std(0, correction=0)
        return cls(values.mean(0), torch.where(std > 0, std, 1.0))

    def __call__(self, value: Tensor) -> Tensor:
        """To standardized units."""
        return (value - self.mean) / self.std

    def inverse(self, value: Tensor) -> Tensor:
        """Back to the original units; for a standard deviation, multiply by `std` instead."""
        return value * self.std + self.mean


@dataclass(frozen=True)
class Toy1D:
    """A regression from raw inputs (n, 1) to raw targets (n, 1), with everything needed to train on it and to plot it.

    `gaps` are the middles of gaps in the raw inputs, `zoomed` and `wide` their ranges for two figures; `features` and
    `targets` lead from raw values to those of the network.
    """

    x_raw: Tensor
    y_raw: Tensor
    gaps: tuple[float, ...]
    zoomed: tuple[float, float]
    wide: tuple[float, float]
    features: Callable[[Tensor], Tensor] = field(default_factory=Standardize)
    targets: Standardize = field(default_factory=Standardize)

    @property
    def x(self) -> Tensor:
        """Network inputs, (n, inputs)."""
        return self.features(self.x_raw)

    @property
    def y(self) -> Tensor:
        """Targets of the network, (n, 1)."""
        return self.targets(self.y_raw)


def snelson(remove_gap: bool = True) -> Toy1D:
    """Snelson's points, with standardized inputs and targets, without the 52 points with 1.5 ≤ x ≤ 3.

    Means and (population) standard deviations are those of the points kept. The noise of published runs is 0.286. A
    Gaussian process fitted by maximum likelihood finds 0.28 in raw units, which is 0.35 in standardized units.
    """
    x_raw, y_raw = fsvi.data.snelson(remove_gap)
    (x_mean, x_std), (y_mean, y_std) = (
        (float(values.double().mean()), float(values.double().std(correction=0))) for values in (x_raw, y_raw)
    )
    zoomed, wide = ((x_mean - far * x_std, x_mean + far * x_std) for far in (2.5, 8.0))
    features, targets = Standardize(x_mean, x_std), Standardize(y_mean, y_std)
    return Toy1D(x_raw, y_raw, (2.25,), zoomed, wide, features, targets)


def oat1d(seed: int = 2, num: int = 100) -> Toy1D:
    """A sum of 30 random cosines, observed on two clusters around −5 and 5, without standardization.

    y = Σ_i cos(W_i x + b_i) + 0.05 ε with W ~ N(0, 1), b ~ U[0, 2π), x = 5 sign(ε') + clip(ε'', −2, 2), drawn in the
    order W, b, ε', ε'', ε from NumPy's legacy generator. With it, seed 2 gives the published function. The original
    notebook draws 1,000 points; the function does not depend on their number.
    """
    random = np.random.RandomState(seed)
    W, b = random.randn(30, 1), random.rand(30, 1) * 2 * np.pi
    x = 5 * np.sign(random.randn(num)) + random.randn(num).clip(-2, 2)
    y = np.cos(W * x + b).sum(0) + 0.05 * random.randn(num)
    return Toy1D(*_columns(np.stack([x, y], axis=1)), (0.0,), (-8.0, 8.0), (-15.0, 15.0))


def subspace() -> Toy1D:
    """The 400 points of "Subspace Inference"; network inputs are the two features (x/2, (x/2)²), targets are raw."""
    points = np.loadtxt(Path(__file__).parent / "subspace.csv", delimiter=",", skiprows=1)
    return Toy1D(*_columns(points), (-3.0, 3.0), (-7.5, 7.5), (-12.0, 12.0), _half_and_square)


def _half_and_square(x: Tensor) -> Tensor:
    return torch.cat([x / 2, (x / 2) ** 2], dim=1)


def _columns(points: np.ndarray) -> tuple[Tensor, Tensor]:
    x, y = torch.from_numpy(points).float().split(1, dim=1)
    return x.contiguous(), y.contiguous()
