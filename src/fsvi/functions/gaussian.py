"""Gaussians over function values at K points, one for each of Q outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fsvi.errors import SingularCovarianceError
from fsvi.networks.devices import in_float64


@dataclass(frozen=True)
class FunctionGaussian:
    """For every output k independently: N(mean[:, k], U diag(w[k]) Uᵀ + d·I), with K points and R columns of U.

    A last linear layer gives U = [Φ, 1] and the variances of its weights as w. A constant prior has R = 0. A Gaussian
    process has the eigenvectors and eigenvalues of its kernel matrix as U and w.
    """

    mean: Tensor
    """(K, Q)"""
    factor: Tensor
    """U, (K, R)"""
    weight: Tensor
    """w, (Q, R), or (1, R) where all outputs share it"""
    diagonal: float | Tensor = 0.0
    """d, a variance added at every point"""
    outputs_joined: int = 1
    """how many outputs stand in one column of `mean`, point by point"""

    @property
    def num_points(self) -> int:
        """The number of points, also where several outputs are joined to one Gaussian."""
        return len(self.mean) // self.outputs_joined

    def part(self, points: Tensor, outputs: Tensor) -> FunctionGaussian:
        """The same Gaussian at the points and for the outputs of these numbers."""
        if self.outputs_joined == 1:
            weight = self.weight if len(self.weight) == 1 else self.weight[outputs]
            return FunctionGaussian(self.mean[points][:, outputs], self.factor[points], weight, self.diagonal)
        rows = (points[:, None] * self.outputs_joined + outputs).flatten()
        return FunctionGaussian(self.mean[rows], self.factor[rows], self.weight, self.diagonal, len(outputs))

    def prepared(self, nugget: float) -> FunctionGaussian:
        """The same Gaussian in float64, with `nugget` added to the diagonal."""
        mean, factor, weight = map(in_float64, (self.mean, self.factor, self.weight))
        return FunctionGaussian(mean, factor, weight, self.diagonal + nugget, self.outputs_joined)

    @cached_property
    def covariance(self) -> Tensor:
        """(Q or 1, K, K)"""
        points, outputs = len(self.factor), len(self.weight)
        if outputs > points:  # no tensor of outputs × points × rank entries
            product = self.weight @ (self.factor[:, None] * self.factor).flatten(0, 1).T
        else:  # one product for all outputs
            product = (self.factor * self.weight[:, None]).flatten(0, 1) @ self.factor.T
        eye = torch.eye(points, dtype=product.dtype, device=product.device)
        return product.view(outputs, points, points) + self.diagonal * eye

    def variance(self) -> Tensor:
        """The covariance's diagonal, (Q or 1, K)."""
        return self.weight @ self.factor.square().T + self.diagonal

    def joint(self) -> FunctionGaussian:
        """All outputs as one Gaussian over K·Q values, point by point, with no correlation between outputs."""
        points, outputs = self.mean.shape
        mean, size = self.mean.reshape(-1, 1), points * outputs
        if not self.factor.shape[1] and len(self.weight) == 1:
            return FunctionGaussian(mean, self.factor.new_zeros(size, 0), self.weight, self.diagonal, outputs)
        covariance = self.covariance.expand(outputs, points, points)
        matrix = torch.diag_embed(covariance.permute(1, 2, 0)).transpose(1, 2).reshape(size, size)
        roots, vectors = torch.linalg.eigh(in_float64(matrix))
        return FunctionGaussian(mean, vectors, roots.clamp_min(0)[None], outputs_joined=outputs)

    def log_prob(self, values: Tensor) -> Tensor:
        """log N(f) of function values (S, K, Q), summed over points and outputs, (S,)."""
        points, outputs = self.mean.shape
        root = cholesky(self.covariance)
        columns = (values - self.mean).permute(2, 1, 0)
        quadratic = (columns * torch.cholesky_solve(columns, root.expand(outputs, -1, -1))).sum((0, 1))
        constant = log_determinant(root).expand(outputs).sum() + points * outputs * math.log(2 * math.pi)
        return -0.5 * (quadratic + constant)


def log_determinant(root: Tensor) -> Tensor:
    """log|L Lᵀ| of Cholesky factors L."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor, or an error that names the settings to change.

    On an accelerator, the program does not wait for the result: the factor of a matrix without one is NaN, which the
    training step finds together with everything else that it checks.
    """
    if matrix.device.type != "cpu":
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return factor.masked_fill((failed != 0)[..., None, None], math.nan)
    try:
        return torch.linalg.cholesky(matrix)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        size = matrix.shape[-1]
        raise SingularCovarianceError(
            f"the {size}×{size} covariance of function values at the context points is not positive definite: raise "
            "`nugget`, lower `num_context`, or, where it has NaN or infinite entries, lower the learning rate."
        ) from error
