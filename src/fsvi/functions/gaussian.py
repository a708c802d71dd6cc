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
from fsvi.networks.functional import is_transformed


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

    def split(self, num: int) -> tuple[FunctionGaussian, FunctionGaussian]:
        """The same Gaussian at the first `num` points and at the others, where outputs are not joined."""
        sizes = [num, len(self.mean) - num]
        pairs = zip(self.mean.split(sizes), self.factor.split(sizes), strict=True)
        first, rest = (FunctionGaussian(mean, factor, self.weight, self.diagonal) for mean, factor in pairs)
        return first, rest

    def prepared(self, nugget: float) -> FunctionGaussian:
        """The same Gaussian in float64, with `nugget` added to the diagonal."""
        mean, factor, weight = (in_float64(t) for t in (self.mean, self.factor, self.weight))
        return FunctionGaussian(mean, factor, weight, self.diagonal + nugget, self.outputs_joined)

    def covariance(self) -> Tensor:
        """(Q or 1, K, K)"""
        points, outputs = len(self.factor), len(self.weight)
        if outputs > points:  # no tensor of outputs × points × rank entries
            product = (self.weight @ _outer(self.factor).T).view(outputs, points, points)
        else:  # one product for all outputs
            scaled = (self.factor * self.weight[:, None, :]).flatten(0, 1)
            product = (self.factor @ scaled.T).view(points, outputs, points).transpose(0, 1)
        product.diagonal(dim1=-2, dim2=-1).add_(self.diagonal)
        return product

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

    @cached_property
    def _is_low_rank(self) -> bool:
        return bool(self.diagonal > 0) and self.factor.shape[1] < self.factor.shape[0]

    @property
    def _is_constant(self) -> bool:
        """Whether Σ = d·I."""
        return self._is_low_rank and not self.factor.shape[1]

    @cached_property
    def _scaled(self) -> Tensor:
        return self.factor * self.weight.sqrt()[:, None, :]

    @cached_property
    def _matrix(self) -> Tensor:
        """The covariance, or where R < K the matrix C = d·I + W^½ Uᵀ U W^½, with Σ⁻¹ = (I − U W^½ C⁻¹ W^½ Uᵀ)/d."""
        if not self._is_low_rank:
            return self.covariance()
        return self._scaled.mT @ self._scaled + self.diagonal * _eye(self.factor, self.factor.shape[1])

    @cached_property
    def _cholesky(self) -> Tensor:
        return cholesky(self._matrix)

    @cached_property
    def _inverse(self) -> Tensor:
        """The inverse of the matrix that was factored; the transpose of what torch returns is contiguous."""
        return torch.cholesky_inverse(self._cholesky).mT

    def log_determinant(self) -> Tensor:
        """log|Σ|, (Q or 1,)"""
        points, rank = self.factor.shape
        logs = 2 * self._cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return logs + (points - rank) * _log(self.diagonal) if self._is_low_rank else logs

    def inverse_trace(self) -> Tensor:
        """tr Σ⁻¹, (Q or 1,)"""
        points, rank = self.factor.shape
        trace = self._inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        return trace + (points - rank) / self.diagonal if self._is_low_rank else trace

    def solve(self, columns: Tensor) -> Tensor:
        """Σ⁻¹ B, (Q or 1, K, columns), for columns B, (Q or 1, K, columns) or (K, columns)."""
        if not self._is_low_rank:
            return self._inverse @ columns
        return (columns - self._scaled @ (self._inverse @ (self._scaled.mT @ columns))) / self.diagonal

    def quadratic(self, columns: Tensor) -> Tensor:
        """bᵀ Σ⁻¹ b for every column b of `columns`, (Q or 1, K, columns) or (K, columns) → (Q or 1, columns)."""
        return (columns * self.solve(columns)).sum(-2)

    def log_prob(self, values: Tensor) -> Tensor:
        """log N(f) of function values (S, K, Q), summed over points and outputs, (S,)."""
        points, outputs = self.mean.shape
        quadratic = self.quadratic((values - self.mean).permute(2, 1, 0)).sum(0)
        constant = self.log_determinant().expand(outputs).sum() + points * outputs * math.log(2 * math.pi)
        return -0.5 * (quadratic + constant)


def gaussian_kl(q: FunctionGaussian, p: FunctionGaussian, nugget: float) -> Tensor:
    """KL(q‖p) summed over outputs, ½ Σₖ [tr(Σp⁻¹Σq) + (mp−mq)ᵀΣp⁻¹(mp−mq) − K + log|Σp| − log|Σq|], in float64.

    `nugget`·I is added to *both* covariances. Σp is factored once when all outputs share it, Σq in one batch.

    Args:
        q: The posterior.
        p: The prior.
        nugget: The variance added to both diagonals.
    """
    fixed = (q.diagonal, p.mean, p.factor, p.weight, p.diagonal)
    if _learns(q.mean, q.factor, q.weight) and not _learns(*fixed) and not is_transformed():
        return _FixedPriorKL.apply(q.mean, q.factor, q.weight, q, p, nugget)
    return back(_kl(q.prepared(nugget), p.prepared(nugget))[0], q.mean)


def _kl(q: FunctionGaussian, p: FunctionGaussian) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """KL(q‖p), and what its gradient needs, too: Σp⁻¹ (mq − mp), (K, Q), and `_products` for Σp."""
    (points, outputs), difference, products = q.mean.shape, q.mean - p.mean, _products(p, q)
    if p._is_constant:
        solved, constants = difference / p.diagonal, points * (_log(p.diagonal) + q.diagonal / p.diagonal)
    else:
        shared = len(p.weight) == 1
        solved = p.solve(difference).squeeze(0) if shared else p.solve(difference.T.unsqueeze(-1)).squeeze(-1).T
        constants = p.log_determinant() + q.diagonal * p.inverse_trace()
    terms = (q.weight * products[1]).sum(-1) + (constants - points - q.log_determinant())
    return 0.5 * (terms.expand(outputs).sum() + (difference * solved).sum()), solved, products


def _gradients(q: FunctionGaussian, solved: Tensor, products: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of KL(q‖p) by q's mean, by its factor U and by its weight w, from what `_kl` computed.

    With Gₖ = Σp⁻¹ − Σq⁻¹ for output k, the last two are Σₖ Gₖ U diag(wₖ), and half the diagonals of Uᵀ Gₖ U.
    """
    by_factor, by_weight = (prior - own for prior, own in zip(products, _products(q, q), strict=True))
    if len(q.weight) == 1:  # all outputs share it
        by_weight = by_weight.expand(q.mean.shape[1], -1).sum(0, keepdim=True)
    return solved, by_factor, 0.5 * by_weight


def _products(g: FunctionGaussian, q: FunctionGaussian) -> tuple[Tensor, Tensor]:
    """Σₖ Σ⁻¹ U diag(wₖ) over all outputs, (K, R), and the diagonals of Uᵀ Σ⁻¹ U, (Q or 1, R), for Σ of `g`."""
    factor, weight, (points, rank) = q.factor, q.weight.expand(q.mean.shape[1], -1), q.factor.shape
    if g._is_constant:
        return factor * (weight.sum(0) / g.diagonal), (factor.square().sum(0) / g.diagonal).expand(len(g.weight), -1)
    if len(g.weight) > points and rank > points:  # outputs × points² entries instead of outputs × points × rank
        inverse = (g.solve(_eye(factor, points)) if g._is_low_rank else g._inverse).flatten(1)
        total = (inverse.T @ weight).unflatten(0, (points, points))
        return (total * factor).sum(1), inverse @ _outer(factor)
    solved = g.solve(factor)
    weight = weight.sum(0, keepdim=True) if len(g.weight) == 1 else weight
    return (solved * weight[:, None, :]).sum(0), (solved * factor).sum(-2)


class _FixedPriorKL(torch.autograd.Function):
    """The KL as a function of q's mean, factor and weight, with its gradient in closed form: faster than autograd's."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        tensors, (q, p, nugget) = inputs[:3], inputs[3:]
        prepared = q.prepared(nugget)
        value, solved, products = _kl(prepared, p.prepared(nugget))
        ctx.save_for_backward(*tensors, *_gradients(prepared, solved, products))
        ctx.save_for_forward(*ctx.to_save)
        ctx.constants = q.diagonal, p, nugget
        return back(value, q.mean)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors, known = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        if torch.is_grad_enabled():  # this gradient will be differentiated
            mean, factor, weight = tensors
            diagonal, p, nugget = ctx.constants
            q = FunctionGaussian(mean, factor, weight, diagonal).prepared(nugget)
            known = _gradients(q, *_kl(q, p.prepared(nugget))[1:])
        products = (in_float64(gradients[0]) * each for each in known)
        return *(each.to(tensor) for each, tensor in zip(products, tensors, strict=True)), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        pairs = zip(ctx.saved_tensors[3:], tangents[:3], strict=True)
        return sum((known * tangent).sum() for known, tangent in pairs)


def _learns(*values: float | Tensor) -> bool:
    """Whether the value of one of these is differentiated."""
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


def _log(value: Any) -> Any:
    return value.log() if isinstance(value, Tensor) else math.log(value)


def _eye(like: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _outer(columns: Tensor) -> Tensor:
    """b bᵀ of every column b, each as a column: (K, C) → (K², C)."""
    return (columns[:, None] * columns).flatten(0, 1)


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
