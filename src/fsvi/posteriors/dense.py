"""Gaussians with a dense covariance for each output."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class DenseGaussian(nn.Module):
    """N(mean_k, L_k L_kᵀ) for every output k, around means (outputs, inputs) that are kept elsewhere.

    L_k = diag(exp(log_std_k)) (I + strictly lower triangle of mixing_k): relative to the standard deviations, one
    learning rate suits covariances of every size. `like` has the means' shape, and `std` is the initial standard
    deviation.
    """

    def __init__(self, like: Tensor, std: float, lr_scale: float) -> None:
        super().__init__()
        self.lr_scale = lr_scale
        self.log_std = nn.Parameter(like.new_full(like.shape, math.log(std)))
        self.mixing = nn.Parameter(like.new_zeros(*like.shape, like.shape[1]))

    def factors(self) -> Tensor:
        """L, (outputs, inputs, inputs)."""
        eye = torch.eye(self.mixing.shape[-1], dtype=self.mixing.dtype, device=self.mixing.device)
        return self.log_std.exp()[:, :, None] * (self.mixing.tril(-1) + eye)

    def kl(self, means: Tensor, variance: float = 1.0) -> Tensor:
        """Σ_k KL(N(w̄_k, S_k) ‖ N(0, v·I)) = ½ Σ_k [(tr S_k + ‖w̄_k‖²)/v − R + R log v − log|S_k|], v = `variance`."""
        squares = (self.factors().square().sum() + means.square().sum()) / variance
        logs = 2 * self.log_std - math.log(variance)
        return 0.5 * (squares - (1 + logs).sum())

    def draws(self, means: Tensor, noise: Tensor) -> Tensor:
        """mean_k + L_k ε_k from noise ε (samples, outputs, inputs)."""
        return means + torch.einsum("krc,skc->skr", self.factors(), noise)
