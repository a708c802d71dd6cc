"""A stochastic process generator: random functions from a network and a Gaussian latent."""

from __future__ import annotations

from torch import Tensor, nn

from fsvi.functions.gaussian import FunctionGaussian
from fsvi.networks.network import Network


class Generator(nn.Module):
    """A stochastic process f_k(x) = h_k(x) + ψ(x)·z_k + ν_k(x), with z_k ~ N(0, I) and white noise ν ~ N(0, δ²).

    h(x) are a network's outputs, and ψ(x) = [Φ(x), 1] A, with its features Φ and A = `basis`, the functions in which
    the process is expanded: a Karhunen–Loève expansion that is learned.
    """

    def __init__(self, network: Network, num_latents: int) -> None:
        super().__init__()
        self.network = network
        size = network.linear.in_features + 1
        self.basis = nn.Parameter(network.linear.weight.new_empty(size, num_latents).normal_(std=size**-0.5))
        self.log_noise = nn.Parameter(network.linear.weight.new_zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """h (n, outputs) and ψ (n, latents)."""
        features, outputs = self.network.with_features(x)
        return outputs, features @ self.basis[:-1] + self.basis[-1]

    def gaussian(self, x: Tensor) -> FunctionGaussian:
        """The process at `x`."""
        mean, functions = self(x)
        weight = functions.new_ones(1, functions.shape[1])
        return FunctionGaussian(mean, functions, weight, (2 * self.log_noise.double()).exp())
