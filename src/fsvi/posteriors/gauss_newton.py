"""The generalized Gauss–Newton matrix of a network's layers, and the Gaussian over parameters that follows from it.

H = Σₙ Jₙᵀ Λₙ Jₙ is a sum over the data, where J is the Jacobian of the outputs and Λ = S Sᵀ the likelihood's Fisher
information. Every structure that is kept of H has the form U diag(λ) Uᵀ with an orthogonal U. So one decomposition
gives (H + δI)⁻¹, its root and its determinant for every δ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fsvi.networks.devices import Precise, in_float64, normal, precise_dtype
from fsvi.posteriors.per_example import Recording, WeightLayer, gradient_moments

_LARGEST_LOG_PRECISION = 20.0
_BISECTIONS = 60


class Curvature(Precise, ABC):
    """H = U diag(λ) Uᵀ of one layer's matrices (groups, O, D), in float64.

    `add` sums over batches; `decompose` then replaces the sums by λ and U. A layer's inputs are its `patches`, (n,
    groups, T, D) without the one of the bias. The derivatives by its outputs at all `positions` are g, (m, n, groups,
    T, O), for the m columns of S.
    """

    sized_by_data: tuple[str, ...] = ("eigenvalues",)
    eigenvalues: Tensor
    """λ, (groups, O, D)"""

    def __init__(self, layer: WeightLayer) -> None:
        super().__init__()
        self._layer = layer
        for name in self.sized_by_data:
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @abstractmethod
    def add(self, patches: Tensor, positions: Tensor) -> None:
        """Add a batch."""

    def decompose(self) -> None:
        """Compute λ and U, after the last batch."""

    def rotate(self, draws: Tensor) -> Tensor:
        """U z of z (num, groups, O, D)."""
        return draws


class Diagonal(Curvature):
    """The diagonal of H."""

    def add(self, patches: Tensor, positions: Tensor) -> None:
        """Add the squares of each example's gradient."""
        for column in positions:
            self.eigenvalues = self.eigenvalues + gradient_moments(self._layer, patches, column)[1]


class Kronecker(Curvature):
    """H ≈ G ⊗ A in every group, A = 1/(NT) ΣΣ ã ãᵀ and G = ΣΣ g gᵀ (Martens & Grosse, 2015; Grosse & Martens, 2016).

    It is exact for one example at one position, and if all examples have the same G, as in linear regression with
    Gaussian noise.
    """

    sized_by_data = ("eigenvalues", "input_basis", "output_basis", "count")
    input_basis: Tensor
    output_basis: Tensor
    count: Tensor

    def add(self, patches: Tensor, positions: Tensor) -> None:
        """Add the outer products of inputs and of gradients."""
        a = self._layer.with_one(patches)
        self.input_basis = self.input_basis + torch.einsum("ngtd,ngte->gde", a, a)
        self.output_basis = self.output_basis + torch.einsum("mngto,mngtp->gop", positions, positions)
        self.count += len(patches) * patches.shape[2]

    def decompose(self) -> None:
        """λ = λ_G λ_A and U = U_G ⊗ U_A."""
        if not self.count:  # the network does not call this layer
            return
        inputs, self.input_basis = torch.linalg.eigh(self.input_basis / self.count)
        outputs, self.output_basis = torch.linalg.eigh(self.output_basis)
        self.eigenvalues = outputs.clamp_min(0)[:, :, None] * inputs.clamp_min(0)[:, None, :]

    def rotate(self, draws: Tensor) -> Tensor:
        """U_G z U_Aᵀ"""
        return self.output_basis.to(draws) @ draws @ self.input_basis.to(draws).mT


class Full(Curvature):
    """All of H, for a layer with one position and one group, such as the last layer."""

    sized_by_data = ("eigenvalues", "basis")
    basis: Tensor

    def add(self, patches: Tensor, positions: Tensor) -> None:
        """Σₙ (Σ g gᵀ) ⊗ ã ãᵀ."""
        a, g = self._layer.with_one(patches)[:, 0, 0], positions[:, :, 0, 0]
        outer = torch.einsum("mno,mnp->nop", g, g)
        blocks = torch.einsum("nop,nd->nopd", outer, a).flatten(1).T @ a
        outputs, inputs = outer.shape[1], a.shape[1]
        blocks = blocks.reshape(outputs, outputs, inputs, inputs).transpose(1, 2)
        self.basis = self.basis + blocks.reshape(outputs * inputs, outputs * inputs)

    def decompose(self) -> None:
        """The eigenvalues and eigenvectors of H."""
        eigenvalues, self.basis = torch.linalg.eigh(self.basis)
        self.eigenvalues = eigenvalues.clamp_min(0).reshape(self._layer.matrix_shape)

    def rotate(self, draws: Tensor) -> Tensor:
        """U z, over all of the layer's parameters together."""
        return (draws.flatten(1) @ self.basis.to(draws).T).reshape(draws.shape)


class GaussNewton(Precise):
    """N(θ*, (H + δI)⁻¹) over the parameters of some layers. H is block-diagonal, with one block of a `kind` per layer.

    `log_likelihood` is log p(D|θ*), `squared_norm` is ‖θ*‖², and `precision` is the prior's δ.
    """

    log_likelihood: Tensor
    squared_norm: Tensor
    precision: Tensor

    def __init__(self, layers: Sequence[WeightLayer], kind: Callable[[WeightLayer], Curvature]) -> None:
        super().__init__()
        blocks = [kind(layer) for layer in layers]
        self.layers, self.blocks = list(layers), nn.ModuleList(blocks)
        self._of_layer = dict(zip(layers, blocks, strict=True))
        for name in ("log_likelihood", "squared_norm", "precision"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @property
    def is_known(self) -> bool:
        """Whether the posterior has been computed, or read from a file."""
        return bool(self.precision > 0)

    @property
    def num_parameters(self) -> int:
        """The number of random parameters."""
        return sum(math.prod(layer.matrix_shape) for layer in self.layers)

    def add(self, recording: Recording, gradients: Sequence[Tensor]) -> None:
        """Add a batch: the layers' inputs, and for each recorded output its m gradients, (m, n, ...)."""
        for layer, patches, positions in recording.pairs(gradients, precise_dtype(gradients[0].device)):
            self._of_layer[layer].add(in_float64(patches), in_float64(positions))

    def decompose(self, means: Mapping[str, Tensor]) -> None:
        """Compute the eigenvalues after the last batch, and the norm of the parameters' `means` θ*."""
        for block in self._of_layer.values():
            block.decompose()
        squares = [in_float64(layer.matrix(means)).square().sum() for layer in self.layers]
        self.squared_norm.copy_(torch.stack(squares).sum())

    @property
    def eigenvalues(self) -> Tensor:
        """λ of all layers as one vector."""
        return torch.cat([block.eigenvalues.flatten() for block in self._of_layer.values()])

    def log_evidence(self, precision: Tensor | float) -> Tensor:
        """log p(D) ≈ log p(D|θ*) − ½ δ‖θ*‖² + ½ Σᵢ log δ − ½ Σᵢ log(λᵢ + δ), Laplace's approximation."""
        precision = torch.as_tensor(precision, dtype=torch.float64, device=self.precision.device)
        logs = precision.log() - (self.eigenvalues + precision).log()
        return self.log_likelihood - 0.5 * (precision * self.squared_norm - logs.sum())

    def best_precision(self) -> float:
        """The δ with the largest evidence, within exp(±20).

        The derivative by log δ is ½ [Σᵢ λᵢ/(λᵢ + δ) − δ‖θ*‖²]. It decreases in δ, so bisection finds its only root.
        """
        low, high = -_LARGEST_LOG_PRECISION, _LARGEST_LOG_PRECISION
        eigenvalues = self.eigenvalues
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            precision = math.exp(middle)
            rises = (eigenvalues / (eigenvalues + precision)).sum() > precision * self.squared_norm
            low, high = (middle, high) if bool(rises) else (low, middle)
        return math.exp(0.5 * (low + high))

    def draw(self, num: int, generator: torch.Generator, like: Tensor) -> dict[str, Tensor]:
        """Draws of θ − θ* by the names of the parameters, each (num, ...), of the type and device of `like`.

        Layers that the network does not call are left out.
        """
        shifts: dict[str, Tensor] = {}
        for layer, block in self._of_layer.items():
            if not block.eigenvalues.dim():
                continue
            noise = normal((num, *layer.matrix_shape), generator, torch.float64, self.precision.device)
            scaled = noise * (block.eigenvalues + self.precision).rsqrt()
            shifts |= layer.tensors(block.rotate(scaled.to(like)))
        return shifts
