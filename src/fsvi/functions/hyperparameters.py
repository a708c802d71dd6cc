"""The hyperparameters of a Gaussian process from data, by marginal likelihood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsvi.functions.gaussian import cholesky
from fsvi.functions.kernels import Kernel, spread
from fsvi.networks.devices import in_float64

_FITTED_TO = 1000
"""How many examples hyperparameters are fitted to; the cost of a step grows with their cube."""
_STEPS = 100
_JITTER = 1e-6
"""The part of the kernel's variance that is added to its diagonal, so that repeated inputs do no harm."""
_FURTHEST = {"lengthscale": 100.0, "variance": 1000.0, "period": 10.0, "noise": 100.0}
"""How many times as large or small as at the start a hyperparameter may become."""


def log_marginal_likelihood(kernel: Tensor, y: Tensor, noise_variance: Tensor) -> Tensor:
    """Σ_q log N(y_q; 0, kernel + noise_variance_q I), for targets `y` (n, q) and one noise for each of the q."""
    eye = torch.eye(len(y), dtype=kernel.dtype, device=kernel.device)
    factor = cholesky(kernel + noise_variance[:, None, None] * eye)
    whitened = torch.linalg.solve_triangular(factor, y.T[:, :, None], upper=False)
    constant = 0.5 * y.numel() * math.log(2 * math.pi)
    return -0.5 * whitened.square().sum() - factor.diagonal(dim1=1, dim2=2).log().sum() - constant


def fit_hyperparameters(
    kernel: Kernel, x: Tensor, y: Tensor, values: Tensor, noise: Tensor, learn_noise: bool
) -> tuple[Tensor, Tensor]:
    """The kernel's hyperparameters and the noise (q,) that maximize the marginal likelihood of the data, or of some.

    The search goes from `values` and `noise`, or from lengthscales up to 16 times as short that are likelier: the
    likelihood has a local maximum where all is noise. It ends within the bounds of `_FURTHEST`, since a column that
    does not matter has an infinite lengthscale.
    """
    from scipy.optimize import minimize  # takes long to import

    x, y = in_float64(spread(x, _FITTED_TO)), in_float64(spread(y, _FITTED_TO))
    first = torch.cat([in_float64(values.detach()).log(), in_float64(noise.detach()).log()])
    kinds = kernel.kinds(x) + ["noise"] * len(noise)

    def loss(logs: Tensor) -> Tensor:
        given, stds = logs.exp().split([len(values), len(noise)])
        matrix = kernel(x, given)
        jitter = _JITTER * matrix.diagonal().max()
        return -log_marginal_likelihood(matrix, y, stds.square() + jitter) / len(y)

    def with_gradient(logs_array: Any) -> tuple[float, Any]:
        logs = torch.from_numpy(logs_array).to(first.device).requires_grad_()
        value = loss(logs)
        (gradient,) = torch.autograd.grad(value, logs)
        return float(value.detach()), gradient.cpu().numpy()

    reach = {**_FURTHEST, **({} if learn_noise else {"noise": 1.0})}
    width = torch.tensor([math.log(reach[kind]) for kind in kinds], dtype=first.dtype).to(first.device)
    bounds = np.stack([(first - width).cpu(), (first + width).cpu()], axis=1)
    is_length = torch.tensor([kind == "lengthscale" for kind in kinds]).to(first)
    shorter = [first - power * math.log(2) * is_length for power in range(5)]
    with torch.no_grad():
        best = min(shorter, key=lambda logs: float(loss(logs)))
    found = minimize(
        with_gradient, best.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
    )
    fitted, stds = torch.from_numpy(found.x).to(first.device).exp().split([len(values), len(noise)])
    return fitted, stds
