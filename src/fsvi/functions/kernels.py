"""Gaussian processes with a squared-exponential kernel: its matrix, and its hyperparameters from data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsvi.functions.gaussian import cholesky

_LOOKED_AT = 300
"""The most inputs from which a median distance is computed."""
_FITTED_TO = 1000
"""The most examples that hyperparameters are fitted to; the cost of a step grows with their cube."""
_STEPS = 100
_JITTER = 1e-6
"""The fraction of the kernel's variance added to its diagonal, so that inputs may repeat."""
_FURTHEST = {"lengthscale": 100.0, "variance": 1000.0, "noise": 100.0}
"""The largest factor by which a hyperparameter may change."""


def rbf_kernel(x: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
    """variance · exp(−½ Σᵢ (xᵢ − x′ᵢ)²/lengthscaleᵢ²) for inputs `x` of any shape, in float64, (n, n).

    One lengthscale serves all the numbers of an input, or each has its own.
    """
    rows = x.flatten(1).double()
    rows = (rows - rows.mean(0)) / lengthscale  # far from zero, distances would drown in rounding
    return variance * (-0.5 * torch.cdist(rows, rows).square()).exp()


def median_distance(x: Tensor) -> Tensor:
    """The median distance between different inputs, a common choice of lengthscale; 1 if there are none."""
    distances = torch.pdist(spread(x).flatten(1).double())
    distances = distances[distances > 0]
    return distances.median() if len(distances) else distances.new_ones(())


def spread(values: Tensor, most: int = _LOOKED_AT) -> Tensor:
    """At most `most` of the values, spread evenly."""
    return values[:: math.ceil(len(values) / most)]


def log_marginal_likelihood(kernel: Tensor, y: Tensor, noise_variance: Tensor) -> Tensor:
    """Σ_q log N(y_q; 0, kernel + noise_variance_q I), for targets `y` (n, q) and one noise for each of the q."""
    eye = torch.eye(len(y), dtype=kernel.dtype, device=kernel.device)
    factor = cholesky(kernel + noise_variance[:, None, None] * eye)
    whitened = torch.linalg.solve_triangular(factor, y.T[:, :, None], upper=False)
    logs = factor.diagonal(dim1=1, dim2=2).log().sum() + 0.5 * y.numel() * math.log(2 * math.pi)
    return -0.5 * whitened.square().sum() - logs


def fit_hyperparameters(x: Tensor, y: Tensor, start: tuple[Tensor, Tensor, Tensor], learn_noise: bool) -> list[Tensor]:
    """Lengthscales, variance and noise (q,) that maximize the marginal likelihood of the data, or of a subset.

    `start` has one lengthscale, or one for every column of `x`. The search goes from there, or from lengthscales up to
    16 times as short that are likelier: the likelihood has a local maximum where all is noise. It ends within the
    bounds of `_FURTHEST`, since a column that does not matter has an infinite lengthscale.
    """
    from scipy.optimize import minimize  # takes long to import

    x, y = spread(x, _FITTED_TO), spread(y, _FITTED_TO).double()
    sizes = [value.numel() for value in start]
    first = torch.cat([value.detach().double().reshape(-1).log() for value in start])

    def loss(logs: Tensor) -> Tensor:
        lengthscale, variance, noise = logs.exp().split(sizes)
        kernel = rbf_kernel(x, lengthscale, variance)
        return -log_marginal_likelihood(kernel, y, noise.square() + _JITTER * variance) / len(y)

    def with_gradient(values: Any) -> tuple[float, Any]:
        logs = torch.from_numpy(values).to(first.device).requires_grad_()
        value = loss(logs)
        (gradient,) = torch.autograd.grad(value, logs)
        return float(value.detach()), gradient.cpu().numpy()

    reach = [math.log(furthest) for furthest in _FURTHEST.values()]
    reach = reach if learn_noise else [*reach[:2], 0.0]
    width = torch.cat([first.new_full((size,), r) for size, r in zip(sizes, reach, strict=True)])
    bounds = np.stack([(first - width).cpu(), (first + width).cpu()], axis=1)
    shorter = [first - power * math.log(2) * (torch.arange(len(first)) < sizes[0]).to(first) for power in range(5)]
    with torch.no_grad():
        best = min(shorter, key=lambda logs: float(loss(logs)))
    found = minimize(
        with_gradient, best.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
    )
    values = torch.from_numpy(found.x).to(first.device).exp().split(sizes)
    return [value.reshape(given.shape) for value, given in zip(values, start, strict=True)]
