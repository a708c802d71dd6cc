"""Random Fourier features (Rahimi & Recht, 2007), with which a linear layer becomes a Gaussian process."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.networks.devices import precise_dtype
from fsvi.validation import check_count, check_positive

MOST_ROWS = 1000
"""Rows whose distances give the length scale."""


class RandomFeatures(nn.Module):
    """Features whose inner product is an RBF kernel: φ(x)·φ(x') ≈ exp(−|x − x'|² / (2 length_scale²)), |φ(x)| = 1.

    φ(x) = A [cos(Ωx), sin(Ωx)] / √(num_features / 2), where the frequencies Ω are drawn from N(0, 1/length_scale²). A
    linear layer on top with weights of variance v is a Gaussian process with kernel v k(x, x'): its variance is v away
    from the data, also in the gaps between them, and its mean is the layer's bias.

    `see` takes the length scale from training inputs. It also chooses the rotation A, so that the features are
    uncorrelated there: a posterior with independent weights (`FSVI`, `MFVI`) can then be as narrow on the data as one
    with full covariance. Without it, A = I, which suits methods with a full covariance (`Laplace`, `VBLL`).

    Args:
        num_inputs: The number of columns of x.
        num_features: The number of features, even. The kernel's error is of the order of 1/√num_features.
        length_scale: The kernel's length scale; None is 1 until `see` sets it.
        normalize: Whether x is divided by its length first, which suits features of a trained network: for them, the
            length says how clear an image is, and the direction what is on it.
    """

    frequencies: Tensor
    scale: Tensor
    axes: Tensor

    def __init__(
        self,
        num_inputs: int,
        num_features: int = 1024,
        length_scale: float | None = None,
        *,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.num_inputs = check_count("num_inputs", num_inputs)
        self.num_features = check_count("num_features", num_features)
        if num_features % 2:
            raise InvalidInputError(f"num_features={num_features} must be even: half are cosines, half are sines.")
        self.normalize = normalize
        self.length_scale = None if length_scale is None else check_positive("length_scale", length_scale)
        self.register_buffer("frequencies", torch.randn(num_inputs, num_features // 2))
        self.register_buffer("scale", torch.tensor(self.length_scale or 1.0))
        self.register_buffer("axes", torch.eye(num_features))

    @torch.no_grad()
    def see(self, x: Tensor) -> None:
        """Take the length scale (the median distance, if none was given) and the rotation from training inputs `x`."""
        if self.length_scale is None:
            self.scale.fill_(median_distance(self._scaled(x[torch.randperm(len(x))[:MOST_ROWS]])))
        waves = self._waves(x).to(precise_dtype(x.device))
        self.axes.copy_(torch.linalg.eigh(waves.T @ waves)[1].flip(1))

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, num_features), those of the largest variance on the data first."""
        return self._waves(x) @ self.axes

    def _waves(self, x: Tensor) -> Tensor:
        angles = self._scaled(x) @ (self.frequencies / self.scale)
        return torch.cat([angles.cos(), angles.sin()], -1) * (2 / self.num_features) ** 0.5

    def _scaled(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) if self.normalize else x


def median_distance(x: Tensor) -> float:
    """The median distance between rows that differ; 1 if none do. It looks at all pairs of rows."""
    distances = torch.pdist(x)
    return float(distances[distances > 0].median()) if bool((distances > 0).any()) else 1.0
