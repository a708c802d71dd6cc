"""The Gaussian of a training run's iterates: a mean, and a covariance that is half diagonal, half low-rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.networks.devices import normal


class LowRank(nn.Module):
    """N(mean, ½ diag(variances) + ½ D Dᵀ/(K − 1)) over vectors that are collected one by one.

    `mean` and `variances` are those of the collected vectors. The columns of D are the last K ≤ `rank` vectors, each
    minus the mean at the time when it was collected. Only the first `size` entries are random; of the others, only the
    mean is kept.
    """

    mean: Tensor
    squares: Tensor
    deviations: Tensor
    count: Tensor

    def __init__(self, example: Tensor, size: int, rank: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros_like(example))
        self.register_buffer("squares", example.new_zeros(size))
        self.register_buffer("deviations", example.new_zeros(rank, size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=example.device))

    @property
    def variances(self) -> Tensor:
        """The collected vectors' variance in each random entry."""
        return self.squares / self.count.clamp_min(1)

    def reset(self) -> None:
        """Forget everything."""
        for state in self.buffers():
            state.zero_()

    @torch.no_grad()
    def collect(self, vector: Tensor) -> None:
        """Add a vector. Sums of squares use Welford's rule, because E[θ²] − E[θ]² would cancel in float32."""
        size, rank = len(self.squares), len(self.deviations)
        before = vector[:size] - self.mean[:size]
        column = self.count % rank
        self.count.add_(1)
        self.mean.add_((vector - self.mean) / self.count)
        after = vector[:size] - self.mean[:size]
        self.squares.add_(before * after)
        self.deviations.index_copy_(0, column[None], after[None])

    def draw(self, generator: torch.Generator) -> Tensor:
        """mean + diag(variances)^½ z₁/√2 + D z₂/√(2(K − 1)), with z₁ and z₂ standard normal."""
        num = min(int(self.count), len(self.deviations))
        like = generator, self.mean.dtype, self.mean.device
        diagonal, low_rank = normal(self.squares.shape, *like), normal((num,), *like)
        shift = (0.5 * self.variances).sqrt() * diagonal
        if num > 1:
            shift += (2 * (num - 1)) ** -0.5 * low_rank @ self.deviations[:num]
        return torch.cat([self.mean[: len(shift)] + shift, self.mean[len(shift) :]])
