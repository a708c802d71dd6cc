"""Gaussians over function values at K points, one for each of Q outputs, and the KL divergence between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fsvi.errors import SingularCovarianceError
from fsvi.networks.devices import back, in_float64


@dataclass(frozen=True)
class FunctionGaussian:
    """For every output k independently: N(mean[:, k], U diag(w[k]) Uᵀ + d·I), with K points and R columns of U.

    A last linear layer gives U = [Φ, 1] and the variances of its weights as w. A constant prior has R = 0. A Gaussian
    process has the eigenvectors and eigenvalues of its kernel matrix as U and w. If R < K, inverses and determinants
    are computed in R dimensions (Woodbury identity and determinant lemma), otherwise with a Cholesky factor in K
    dimensions.
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
        """The same Gaussian at some of the points and for some of the outputs.

        Args:
            points: The numbers of the points.
            outputs: The numbers of the outputs.
        """
        if self.outputs_joined == 1:
            weight = self.weight if len(self.weight) == 1 else self.weight[outputs]
            return FunctionGaussian(self.mean[points][:, outputs], self.factor[points], weight, self.diagonal)
        rows = (points[:, None] * self.outputs_joined + outputs).flatten()
        return FunctionGaussian(self.mean[rows], self.factor[rows], self.weight, self.diagonal, len(outputs))

    def prepared(self, nugget: float) -> FunctionGaussian:
        """The same Gaussian in float64, with `nugget` added to the diagonal."""
        mean, factor, weight = (in_float64(t) for t in (self.mean, self.factor, self.weight))
        return FunctionGaussian(mean, factor, weight, self.diagonal + nugget, self.outputs_joined)

    def covariance(self) -> Tensor:
        """(Q or 1, K, K)"""
        eye = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        return (self.factor * self.weight[:, None, :]) @ self.factor.T + self.diagonal * eye

    def variance(self) -> Tensor:
        """The covariance's diagonal, (Q or 1, K)."""
        return self.weight @ self.factor.square().T + self.diagonal

    def joint(self) -> FunctionGaussian:
        """All outputs as one Gaussian over K·Q values, point by point, with no correlation between outputs."""
        points, outputs = self.mean.shape
        mean, size = self.mean.reshape(-1, 1), points * outputs
        if not self.factor.shape[1] and len(self.weight) == 1:
            return FunctionGaussian(mean, self.factor.new_zeros(size, 0), self.weight, self.diagonal, outputs)
        covariance = self.covariance().expand(outputs, points, points)
        eye = torch.eye(outputs, dtype=covariance.dtype, device=covariance.device)
        matrix = torch.einsum("qij,qr->iqjr", covariance, eye).reshape(size, size)
        roots, vectors = torch.linalg.eigh(in_float64(matrix))
        return FunctionGaussian(mean, vectors, roots.clamp_min(0)[None], outputs_joined=outputs)

    @property
    def _is_low_rank(self) -> bool:
        return bool(self.diagonal > 0) and self.factor.shape[1] < self.factor.shape[0]

    @cached_property
    def _scaled(self) -> Tensor:
        return self.factor * self.weight.sqrt()[:, None, :]

    @cached_property
    def _matrix(self) -> Tensor:
        """The covariance, or where R < K the matrix C = d·I + W^½ Uᵀ U W^½, with Σ⁻¹ = (I − U W^½ C⁻¹ W^½ Uᵀ)/d."""
        if not self._is_low_rank:
            return self.covariance()
        rank = self.factor.shape[1]
        eye = torch.eye(rank, dtype=self.factor.dtype, device=self.factor.device)
        return self._scaled.mT @ self._scaled + self.diagonal * eye

    @cached_property
    def _cholesky(self) -> Tensor:
        return cholesky(self._matrix)

    def log_determinant(self) -> Tensor:
        """log|Σ|, (Q or 1,)"""
        if not self._is_low_rank:
            return _LogDeterminant.apply(self._matrix, self._cholesky)
        points, rank = self.factor.shape
        logs = _LogDeterminant.apply(self._matrix, self._cholesky) if rank else self.weight.new_zeros(len(self.weight))
        diagonal = self.diagonal
        return logs + (points - rank) * (diagonal.log() if isinstance(diagonal, Tensor) else math.log(diagonal))

    def quadratic(self, columns: Tensor) -> Tensor:
        """bᵀ Σ⁻¹ b for every column b of `columns`, (Q or 1, K, columns) or (K, columns) → (Q or 1, columns)."""
        if not self._is_low_rank:
            return torch.linalg.solve_triangular(self._cholesky, columns, upper=False).square().sum(-2)
        squares = columns.square().sum(-2)
        if not self.factor.shape[1]:
            return (squares.expand(len(self.weight), -1) if columns.dim() == 2 else squares) / self.diagonal
        inner = torch.linalg.solve_triangular(self._cholesky, self._scaled.mT @ columns, upper=False)
        return (squares - inner.square().sum(-2)) / self.diagonal

    def log_prob(self, values: Tensor) -> Tensor:
        """log N(f) of function values (S, K, Q), summed over points and outputs, (S,)."""
        points, outputs = self.mean.shape
        quadratic = self.quadratic((values - self.mean).permute(2, 1, 0)).sum(0)
        constant = self.log_determinant().expand(outputs).sum() + points * outputs * math.log(2 * math.pi)
        return -0.5 * (quadratic + constant)

    def inverse_trace(self) -> Tensor:
        """tr Σ⁻¹, (Q or 1,)"""
        if not self._is_low_rank:
            return self._trace()
        points, rank = self.factor.shape
        trace = self._trace() if rank else self.weight.new_zeros(len(self.weight))
        return (points - rank + self.diagonal * trace) / self.diagonal

    def _trace(self) -> Tensor:
        """tr of the inverse of the matrix that was factored"""
        eye = torch.eye(self._cholesky.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self._cholesky, eye, upper=False).square().sum((-2, -1))


class _LogDeterminant(torch.autograd.Function):
    """log|A| from A's Cholesky factor; its gradient is A⁻¹ directly, without differentiating the factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, factor: Tensor) -> Tensor:
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return gradients[0][..., None, None] * torch.cholesky_inverse(factor), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return (torch.cholesky_inverse(factor) * tangents[0]).sum((-2, -1))


def gaussian_kl(q: FunctionGaussian, p: FunctionGaussian, nugget: float) -> Tensor:
    """KL(q‖p) summed over outputs, ½ Σₖ [tr(Σp⁻¹Σq) + (mp−mq)ᵀΣp⁻¹(mp−mq) − K + log|Σp| − log|Σq|], in float64.

    `nugget`·I is added to *both* covariances. Σp is factored once when all outputs share it, Σq in one batch.

    Args:
        q: The posterior.
        p: The prior.
        nugget: The variance added to both diagonals.
    """
    like, q, p = q.mean, q.prepared(nugget), p.prepared(nugget)
    points = len(q.mean)
    difference = p.mean - q.mean
    if len(p.weight) == 1:
        quadratic = p.quadratic(difference).squeeze(0)
    else:
        quadratic = p.quadratic(difference.T.unsqueeze(-1)).squeeze(-1)
    trace = (q.weight * p.quadratic(q.factor)).sum(-1) + q.diagonal * p.inverse_trace()
    return back(0.5 * (trace + quadratic - points + p.log_determinant() - q.log_determinant()).sum(), like)


def diagonal_kl(q: FunctionGaussian, p: FunctionGaussian, nugget: float) -> Tensor:
    """The same without correlations between points: K·Q univariate Gaussians.

    Args:
        q: The posterior.
        p: The prior.
        nugget: The variance added to both diagonals.
    """
    like, q, p = q.mean, q.prepared(nugget), p.prepared(nugget)
    ratio = q.variance() / p.variance()
    return back(0.5 * (ratio + (p.mean - q.mean).T.square() / p.variance() - 1 - ratio.log()).sum(), like)


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
