"""Radial Bayesian neural networks (Farquhar, Osborne & Gal, 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fsvi.methods.mfvi import MFVI
from fsvi.networks.devices import normal
from fsvi.posteriors.mean_field import Draw, MeanField, negative_log_normal

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


class RadialMFVI(MFVI):
    """Minimizes −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · KL(q(θ) ‖ N(0, prior_variance·I)) over radial posteriors q.

    For every parameter tensor, θ = mean + exp(log_std)·(ε/‖ε‖)·r with ε ~ N(0, I) and a single r ~ N(0, 1). In any
    dimension, the distance of draws from the mean is that of a one-dimensional Gaussian, while a Gaussian's draws would
    stay on a distant shell and never come near the mean. Then

        KL = −H[q] − E_q[log p(θ)],    H[q] = Σᵢ log_stdᵢ + constant,

    with the cross-entropy estimated from the M draws of the likelihood.

    The settings are those of `MFVI`. The standard deviations of `stds` are those of single parameters, which in a
    tensor of D are exp(log_std)/√D.

    Examples:
        >>> method = fsvi.RadialMFVI(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    _family = Radial
    posterior: Radial

    def _kl(self, draws: Sequence[Draw]) -> Tensor:
        """The entropy is exact."""
        densities = [negative_log_normal(draw.params.values(), self.prior_variance) for draw in draws]
        constant = 0.5 * self.posterior.log_std.numel() * math.log(2 * math.pi * self.prior_variance)
        return torch.stack(densities).mean() + constant - self.posterior.entropy()
