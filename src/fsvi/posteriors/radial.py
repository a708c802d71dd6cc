"""The radial distribution over a network's parameters (Farquhar, Osborne & Gal, 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fsvi.networks.devices import normal
from fsvi.posteriors.mean_field import MeanField

_EULER = 0.5772156649015329


class Radial(MeanField):
    """θ = mean + exp(log_std)·(ε/‖ε‖)·r for every tensor, with ε ~ N(0, I) and one r ~ N(0, 1) per tensor.

    In units of exp(log_std), the direction from the mean is uniform and the distance is |r| in every dimension. A
    single parameter in a tensor of D parameters has the standard deviation exp(log_std)/√D.
    """

    def initial(self, stds: Mapping[str, float]) -> dict[str, float]:
        """√D times the standard deviations of single parameters."""
        return {name: std * math.sqrt(self.layout.shapes[name].numel()) for name, std in stds.items()}

    def stds(self) -> dict[str, Tensor]:
        """The standard deviation of every stochastic parameter, under its name in the network."""
        return {name: scale / math.sqrt(scale.numel()) for name, scale in super().stds().items()}

    def noise(self, generator: torch.Generator | None = None, *num: int) -> Tensor:
        """(ε/‖ε‖)·r for every tensor, as one flat vector."""
        directions = super().noise(generator, *num)
        parts = directions.split(self.layout.sizes, dim=-1)
        radii = normal((*num, len(parts)), generator, directions.dtype, directions.device).split(1, dim=-1)
        units = [part / torch.linalg.vector_norm(part, dim=-1, keepdim=True) for part in parts]
        return torch.cat([unit * r for unit, r in zip(units, radii, strict=True)], dim=-1)

    def entropy(self) -> Tensor:
        """H[q] = Σᵢ log_stdᵢ + Σ over tensors of H[(ε/‖ε‖)·r]."""
        return self.log_std.sum() + sum(map(noise_entropy, self.layout.sizes))


def noise_entropy(dimension: int) -> float:
    """The entropy of (ε/‖ε‖)·r in `dimension` D, by polar coordinates: H[|r|] + log A + (D − 1) E[log |r|].

    A = 2 π^(D/2) / Γ(D/2) is the area of the unit sphere; H[|r|] = ½ log(π/2) + ½ and E[log |r|] = −½ (γ + log 2) are
    those of the half-normal distribution.
    """
    log_area = math.log(2) + 0.5 * dimension * math.log(math.pi) - math.lgamma(0.5 * dimension)
    return 0.5 * math.log(math.pi / 2) + 0.5 + log_area - 0.5 * (dimension - 1) * (_EULER + math.log(2))
