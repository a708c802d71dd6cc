"""Toy data: two moons to classify, and a regression with a gap.

`snelson.csv` has the 200 training points of E. Snelson and Z. Ghahramani, "Sparse Gaussian Processes using
Pseudo-inputs", NIPS 2006, as distributed with the authors' demonstration code.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from fsvi.validation import check_count, check_positive


def two_moons(num: int = 200, noise: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two interleaved half circles with Gaussian noise.

    Args:
        num: The number of points, half of them in each class.
        noise: The standard deviation of the noise.
        seed: The seed of the draw.

    Returns:
        Inputs (num, 2) float32 and labels (num,) int64.
    """
    check_count("num", num, least=2)
    check_positive("noise", noise, zero=True)
    from sklearn.datasets import make_moons  # takes longer to import than all of fsvi

    x, y = make_moons(n_samples=num, noise=noise, random_state=seed)
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


def snelson(remove_gap: bool = True) -> tuple[Tensor, Tensor]:
    """Snelson's 200 points, a regression with one input.

    Args:
        remove_gap: Whether to leave out the 52 points with 1.5 ≤ x ≤ 3.

    Returns:
        Inputs (n, 1) and targets (n, 1) float32.
    """
    with (files("fsvi.data") / "snelson.csv").open(encoding="utf-8") as file:
        points = np.loadtxt(file, delimiter=",", skiprows=1)
    if remove_gap:
        points = points[(points[:, 0] < 1.5) | (points[:, 0] > 3.0)]
    x, y = torch.from_numpy(points).float().split(1, dim=1)
    return x.contiguous(), y.contiguous()
