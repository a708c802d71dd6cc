"""A method of your own in one file: a network whose parameters have Gaussian noise of one size."""

from typing import Any

import torch
from torch import Tensor, nn

import fsvi
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Functions, network_functions
from fsvi.validation import check_positive


class WeightNoise(fsvi.Method):
    """Minimizes −1/B Σ log p(y|f(x; θ + std·ε)) + decay · ‖θ‖², with ε ~ N(0, I).

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        std: The standard deviation of the noise.
        decay: The weight of the penalty.
    """

    def __init__(
        self, net: nn.Module | fsvi.Network, likelihood: Likelihood, *, std: float = 0.05, decay: float = 1e-4
    ) -> None:
        super().__init__(net, likelihood)
        self.std, self.decay = check_positive("std", std), check_positive("decay", decay)
        self.build(self.network)

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """θ + std·ε."""
        return {
            name: value + self.std * torch.randn(value.shape, generator=generator, device=value.device)
            for name, value in self.net.named_parameters()
        }

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The named terms whose sum is the loss."""
        size = sum(value.square().sum() for value in self.net.parameters())
        return {"nll": self.likelihood.nll(self.network(x, self.draw()), y), "size": self.decay * size}

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws as one function: x → (samples, n, outputs). Predictions evaluate it, export traces it."""
        draws = [self.draw(generator) for _ in range(num_samples)]
        return network_functions(self.network, {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]})


if __name__ == "__main__":  # also under torchrun --nproc-per-node=2
    x, y = fsvi.data.two_moons(200, noise=0.2, seed=0)
    torch.manual_seed(0)
    method = WeightNoise(fsvi.networks.mlp(2, (30, 30), 2), fsvi.Categorical())
    fsvi.fit(method, (x, y), epochs=30, seed=0)
    print(f"accuracy {fsvi.metrics.accuracy(method.predict(x), y):.2f}")
