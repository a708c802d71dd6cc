"""Gaussian processes with a squared-exponential kernel: its matrix, and its hyperparameters from data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fsvi.functions.gaussian import cholesky

_LOOKED_AT = 300
"""How many inputs hyperparameters are found from; the cost of a step grows with their cube."""
_STEPS = 200
_LEARNING_RATE = 0.05
_JITTER = 1e-6
"""The part of the kernel's variance that is added to its diagonal, so that repeated inputs do no harm."""


def rbf_kernel(x: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
    """variance · exp(−‖x − x′‖²/(2 lengthscale²)) for inputs `x` of any shape, in float64, (n, n)."""
    rows = x.flatten(1).double()
    return variance * (-0.5 * torch.cdist(rows, rows).square() / lengthscale**2).exp()


def median_distance(x: Tensor) -> Tensor:
    """The median distance between different inputs, a common choice of lengthscale; 1 if there are none."""
    distances = torch.pdist(spread(x).flatten(1).double())
    distances = distances[distances > 0]
    return distances.median() if len(distances) else distances.new_ones(())


def spread(values: Tensor, most: int = _LOOKED_AT) -> Tensor:
    """At most so many of them, spread evenly."""
    return values[:: math.ceil(len(values) / most)]


def log_marginal_likelihood(kernel: Tensor, y: Tensor, noise_variance: Tensor) -> Tensor:
    """Σ_q log N(y_q; 0, kernel + noise_variance_q I), for targets `y` (n, q) and one noise for each of the q."""
    eye = torch.eye(len(y), dtype=kernel.dtype, device=kernel.device)
    factor = cholesky(kernel + noise_variance[:, None, None] * eye)
    whitened = torch.linalg.solve_triangular(factor, y.T[:, :, None], upper=False)
    logs = factor.diagonal(dim1=1, dim2=2).log().sum() + 0.5 * y.numel() * math.log(2 * math.pi)
    return -0.5 * whitened.square().sum() - logs


def fit_hyperparameters(x: Tensor, y: Tensor, start: tuple[Tensor, Tensor, Tensor], learn_noise: bool) -> list[Tensor]:
    """Lengthscale, variance and noise (q,) that maximise the marginal likelihood of some of the data.

    The search starts from `start`, or from a lengthscale up to 16 times as short that is likelier: the likelihood has a
    local maximum where all is noise.
    """
    x, y = spread(x), spread(y).double()

    def loss(logs: list[Tensor]) -> Tensor:
        lengthscale, variance, noise = (log.exp() for log in logs)
        kernel = rbf_kernel(x, lengthscale, variance)
        return -log_marginal_likelihood(kernel, y, noise.square() + _JITTER * variance) / len(y)

    lengthscale, *others = (value.detach().double().log() for value in start)
    shorter = [lengthscale - power * math.log(2) for power in range(5)]
    best = min(shorter, key=lambda log: float(loss([log, *others])))
    logs = [log.requires_grad_() for log in (best, *others)]
    optimizer = torch.optim.Adam(logs if learn_noise else logs[:2], lr=_LEARNING_RATE)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss(logs).backward()
        optimizer.step()
    return [log.detach().exp() for log in logs]
