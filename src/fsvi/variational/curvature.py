"""The generalised Gauss–Newton matrix of a network's layers, and the Gaussian over parameters that it makes.

H = Σₙ Jₙᵀ Λₙ Jₙ sums over data the Jacobian J of the outputs and the likelihood's Fisher information Λ = S Sᵀ of them.
Whatever the structure kept of H, it is U diag(λ) Uᵀ with U orthogonal: then (H + δI)⁻¹, its root and its determinant
follow for every δ from one decomposition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fsvi.variational.per_example import Recording, WeightLayer, example_gradients, gradient_moments

_LARGEST_LOG_PRECISION = 20.0
_BISECTIONS = 60


class Curvature(nn.Module, ABC):
    """H = U diag(λ) Uᵀ of one layer's matrices (groups, O, D), in float64.

    Batches come through `add`, from which `decompose` makes λ and U, in the place of what was added up.
    """

    eigenvalues: Tensor
    """λ, (groups, O, D)"""

    def __init__(self, layer: WeightLayer) -> None:
        super().__init__()
        self.register_buffer("eigenvalues", torch.zeros(layer.matrix_shape, dtype=torch.float64))

    @abstractmethod
    def add(self, patches: Tensor, gradients: Tensor) -> None:
        """Add a batch: patches ã, (n, groups, T, D), and g, (m, n, groups, T, O), for the m columns of S."""

    def decompose(self) -> None:
        """Find λ and U, once everything is added."""

    def to_basis(self, matrices: Tensor) -> Tensor:
        """Uᵀ of matrices (..., groups, O, D)."""
        return matrices

    def from_basis(self, coordinates: Tensor) -> Tensor:
        """U of coordinates (..., groups, O, D)."""
        return coordinates


class Diagonal(Curvature):
    """The diagonal of H alone."""

    def add(self, patches: Tensor, gradients: Tensor) -> None:
        """Squares of every example's gradient."""
        for column in gradients:
            self.eigenvalues += gradient_moments(patches, column)[1]


class Kronecker(Curvature):
    """H ≈ G ⊗ A in every group, A = 1/(NT) ΣΣ ã ãᵀ and G = ΣΣ g gᵀ (Martens & Grosse, 2015; Grosse & Martens, 2016).

    Exact for one example at one position, and where all examples have the same G: one linear layer, Gaussian noise.
    """

    input_basis: Tensor
    output_basis: Tensor
    count: Tensor

    def __init__(self, layer: WeightLayer) -> None:
        super().__init__(layer)
        groups, outputs, inputs = layer.matrix_shape
        self.register_buffer("input_basis", torch.zeros(groups, inputs, inputs, dtype=torch.float64))
        self.register_buffer("output_basis", torch.zeros(groups, outputs, outputs, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def add(self, patches: Tensor, gradients: Tensor) -> None:
        """Outer products of inputs and of gradients."""
        self.input_basis += torch.einsum("ngtd,ngte->gde", patches, patches)
        self.output_basis += torch.einsum("mngto,mngtp->gop", gradients, gradients)
        self.count += len(patches) * patches.shape[2]

    def decompose(self) -> None:
        """λ = λ_G λ_A and U = U_G ⊗ U_A."""
        inputs = _decompose(self.input_basis) / self.count.clamp_min(1)
        outputs = _decompose(self.output_basis)
        self.eigenvalues.copy_(outputs[:, :, None] * inputs[:, None, :])

    def to_basis(self, matrices: Tensor) -> Tensor:
        """U_Gᵀ M U_A."""
        return self.output_basis.mT @ matrices @ self.input_basis

    def from_basis(self, coordinates: Tensor) -> Tensor:
        """U_G M U_Aᵀ."""
        return self.output_basis @ coordinates @ self.input_basis.mT


class Full(Curvature):
    """All of H, of a layer with one position and one group, such as the last."""

    basis: Tensor

    def __init__(self, layer: WeightLayer) -> None:
        super().__init__(layer)
        size = self.eigenvalues.numel()
        self.register_buffer("basis", torch.zeros(size, size, dtype=torch.float64))

    def add(self, patches: Tensor, gradients: Tensor) -> None:
        """Σₙ (Σ g gᵀ) ⊗ ã ãᵀ."""
        a, g = patches[:, 0, 0], gradients[:, :, 0, 0]
        outer = torch.einsum("mno,mnp->nop", g, g)
        blocks = torch.einsum("nop,nd->nopd", outer, a).flatten(1).T @ a
        outputs, inputs = outer.shape[1], a.shape[1]
        self.basis += blocks.reshape(outputs, outputs, inputs, inputs).transpose(1, 2).reshape(self.basis.shape)

    def decompose(self) -> None:
        """The eigenvalues and eigenvectors of H."""
        self.eigenvalues.copy_(_decompose(self.basis).reshape(self.eigenvalues.shape))

    def to_basis(self, matrices: Tensor) -> Tensor:
        """Uᵀ vec(M)."""
        return (matrices.flatten(-3) @ self.basis).reshape(matrices.shape)

    def from_basis(self, coordinates: Tensor) -> Tensor:
        """U vec(M)."""
        return (coordinates.flatten(-3) @ self.basis.mT).reshape(coordinates.shape)


class GaussNewton(nn.Module):
    """N(θ*, (H + δI)⁻¹) over the parameters of some layers, H block-diagonal over them, of one `kind` for all.

    `log_likelihood` is log p(D|θ*), `squared_norm` ‖θ*‖², `precision` the prior's δ.
    """

    log_likelihood: Tensor
    squared_norm: Tensor
    precision: Tensor

    def __init__(self, layers: Sequence[WeightLayer], kind: Callable[[WeightLayer], Curvature]) -> None:
        super().__init__()
        self.layers = list(layers)
        self.blocks = nn.ModuleList(kind(layer) for layer in layers)
        for name in ("log_likelihood", "squared_norm", "precision"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def add(self, recording: Recording, gradients: Sequence[Tensor]) -> None:
        """Add a batch: what the layers saw, and for each of the recording's outputs its gradients, m of them."""
        for layer, patches, positions in recording.pairs(gradients):
            self._block(layer).add(patches.double(), positions.double())

    def decompose(self, means: Mapping[str, Tensor]) -> None:
        """Everything is added: find the eigenvalues, and keep the norm of the `means` θ*."""
        for layer in self.layers:
            self._block(layer).decompose()
        squares = [layer.matrix(means).double().square().sum() for layer in self.layers]
        self.squared_norm.copy_(torch.stack(squares).sum())

    @property
    def eigenvalues(self) -> Tensor:
        """λ of all layers, one vector."""
        return torch.cat([self._block(layer).eigenvalues.flatten() for layer in self.layers])

    def log_evidence(self, precision: Tensor | float) -> Tensor:
        """log p(D) ≈ log p(D|θ*) − ½ δ‖θ*‖² + ½ Σᵢ log δ − ½ Σᵢ log(λᵢ + δ), Laplace's approximation."""
        precision = torch.as_tensor(precision, dtype=torch.float64, device=self.precision.device)
        logs = precision.log() - (self.eigenvalues + precision).log()
        return self.log_likelihood - 0.5 * (precision * self.squared_norm - logs.sum())

    def best_precision(self) -> float:
        """The δ of the largest evidence, within exp(±20).

        The derivative by log δ is ½ [Σᵢ λᵢ/(λᵢ + δ) − δ‖θ*‖²], which only falls: there is one root, found by bisection.
        """
        low, high = -_LARGEST_LOG_PRECISION, _LARGEST_LOG_PRECISION
        eigenvalues = self.eigenvalues
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            precision = math.exp(middle)
            rises = (eigenvalues / (eigenvalues + precision)).sum() > precision * self.squared_norm
            low, high = (middle, high) if bool(rises) else (low, middle)
        return math.exp(0.5 * (low + high))

    def draw(self, num: int, generator: torch.Generator) -> dict[WeightLayer, Tensor]:
        """θ − θ* for `num` draws of θ, (num, groups, O, D) for each layer: U (λ + δ)^-½ ε with ε ~ N(0, I)."""
        draws = {}
        for layer in self.layers:
            block = self._block(layer)
            noise = torch.randn(num, *layer.matrix_shape, generator=generator, dtype=torch.float64)
            draws[layer] = block.from_basis(noise.to(self.precision.device) * self._stds(block))
        return draws

    def covariance(self, recording: Recording, jacobians: Sequence[Tensor]) -> Tensor:
        """J (H + δI)⁻¹ Jᵀ between the outputs at each input, (n, Q, Q).

        `jacobians`, (Q, n, ...) each, are the derivatives of the network's outputs by those of the recording.
        """
        parts = []
        for layer, patches, positions in recording.pairs(jacobians):
            block = self._block(layer)
            rows = _jacobian(patches, positions).double()
            scaled = (block.to_basis(rows) * self._stds(block)).flatten(2)
            parts.append(scaled @ scaled.mT)
        return torch.stack(parts).sum(0)

    def _block(self, layer: WeightLayer) -> Curvature:
        block = self.blocks[self.layers.index(layer)]
        assert isinstance(block, Curvature)
        return block

    def _stds(self, block: Curvature) -> Tensor:
        return (block.eigenvalues + self.precision).rsqrt()


def linear_change(recording: Recording, jacobians: Sequence[Tensor], draws: Mapping[WeightLayer, Tensor]) -> Tensor:
    """J (θ − θ*) for draws of θ − θ*, (num, groups, O, D) for each layer: (n, num, Q)."""
    parts = []
    for layer, patches, positions in recording.pairs(jacobians):
        draw = draws[layer]
        if patches.shape[2] == 1:
            moved = torch.einsum("sgod,ngtd->nsgto", draw, patches)
            parts.append(torch.einsum("nsgto,qngto->nsq", moved, positions))
        else:
            parts.append(torch.einsum("nqgod,sgod->nsq", _jacobian(patches, positions), draw))
    return torch.stack(parts).sum(0)


def _jacobian(patches: Tensor, positions: Tensor) -> Tensor:
    """Every output's derivative by a layer's matrices at each input, (n, Q, groups, O, D)."""
    return torch.stack([example_gradients(patches, column) for column in positions], dim=1)


def _decompose(matrix: Tensor) -> Tensor:
    """Eigenvalues of symmetric matrices, whose place their eigenvectors take."""
    values, vectors = torch.linalg.eigh(matrix)
    matrix.copy_(vectors)
    return values.clamp_min(0)
