"""FSVI in one file

The paper's objective in plain PyTorch, without fsvi: independent Gaussians over the weights, the functions that they
imply, and their KL from the prior at context points. A test compares its loss and gradient with those of `fsvi.FSVI`.
"""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F


class FSVI(nn.Module):
    """A network whose weights are independent Gaussians, θ = mean + exp(log_std)·ε, with a prior on its functions.

    The loss is −log p(y | f(x; θ)) + 1/N · KL(q(f(X)) ‖ p(f(X))): the likelihood of one draw, and how far the function
    is from the prior N(0, v) at context points X, inputs that need not look like the data. The KL needs q(f(X)), which
    is Gaussian after two steps: features are linearized around their mean, and the last layer is linear anyway.

    Args:
        net: A sequence of layers that ends with `nn.Linear`; its parameters become the means.
        context: Returns K context points.
        num_data: N.
        prior_variance: v.
        nugget: The variance added at every point to both covariances, which keeps them invertible.
    """

    def __init__(
        self,
        net: nn.Sequential,
        context: Callable[[], Tensor],
        num_data: int,
        prior_variance: float = 0.5,
        nugget: float = 1e-2,
    ) -> None:
        super().__init__()
        self.features, self.head = net[:-1], net[-1]
        self.context, self.num_data, self.prior_variance, self.nugget = context, num_data, prior_variance, nugget
        # Small noise in the features; in the last layer as much as gives functions a variance of order one.
        self.feature_logs = nn.ParameterList(torch.full_like(p, math.log(0.01)) for p in self.features.parameters())
        start = -0.5 * math.log(self.head.in_features)
        self.head_logs = nn.ParameterList(torch.full_like(p, start) for p in self.head.parameters())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a minibatch."""
        shifts, head_shifts = self.draw()
        nll = F.cross_entropy(self.values(x, shifts, head_shifts), y)
        points = self.context()
        with_points = lambda params: functional_call(self.features, params, points)  # noqa: E731
        features, change = jvp(with_points, (dict(self.features.named_parameters()),), (shifts,))
        mean = self.head(features + change)  # f(X) at the drawn features, to first order, and the last layer's mean
        weight, bias = self.head_logs
        variance = (2 * torch.cat([weight, bias[:, None]], 1)).exp()
        return nll + self.kl(mean, F.pad(features, (0, 1), value=1.0), variance) / self.num_data

    def kl(self, mean: Tensor, features: Tensor, variance: Tensor) -> Tensor:
        """KL of N(mean, Φ diag(variance) Φᵀ) from N(0, v), both with the nugget, summed over outputs; in float64.

        Args:
            mean: The means at K points, (K, Q).
            features: Φ, with a one for the bias, (K, R).
            variance: The variances of the last layer's weights and biases, (Q, R).
        """
        mean, features, variance = mean.double(), features.double(), variance.double()
        covariance = (features * variance[:, None]) @ features.T + self.nugget * torch.eye(len(mean)).double()
        prior = self.prior_variance + self.nugget
        trace = covariance.diagonal(dim1=-2, dim2=-1).sum() + mean.square().sum()
        log_det = 2 * torch.linalg.cholesky(covariance).diagonal(dim1=-2, dim2=-1).log().sum()
        return (0.5 * (trace / prior + mean.numel() * (math.log(prior) - 1) - log_det)).float()

    def draw(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A draw of the parameters minus their means, of the features and of the last layer."""

        def shifts(layers: nn.Module, logs: nn.ParameterList) -> dict[str, Tensor]:
            names = [name for name, _ in layers.named_parameters()]
            return {name: log.exp() * torch.randn_like(log) for name, log in zip(names, logs, strict=True)}

        return shifts(self.features, self.feature_logs), shifts(self.head, self.head_logs)

    def values(self, x: Tensor, shifts: dict[str, Tensor], head_shifts: dict[str, Tensor]) -> Tensor:
        """f(x; θ) of one draw."""

        def moved(layers: nn.Module, by: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: mean + by[name] for name, mean in layers.named_parameters()}

        features = functional_call(self.features, moved(self.features, shifts), x)
        return functional_call(self.head, moved(self.head, head_shifts), features)

    @torch.no_grad()
    def predict(self, x: Tensor, num_samples: int = 100) -> Tensor:
        """Class probabilities, averaged over draws."""
        return torch.stack([self.values(x, *self.draw()).softmax(-1) for _ in range(num_samples)]).mean(0)


def two_moons(num: int, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    """Two half circles of points, and which one each point belongs to."""
    angle, y = math.pi * torch.rand(num), torch.arange(num) % 2
    x = torch.stack([torch.where(y == 0, angle.cos(), 1 - angle.cos()), (0.5 - y) * (2 * angle.sin() - 0.5)], 1)
    return x + noise * torch.randn_like(x), y


def train(epochs: int = 1000, num: int = 200) -> FSVI:
    """Train on two moons with context points from a square around them."""
    x, y = two_moons(num)
    net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 2))
    model = FSVI(net, lambda: 20 * torch.rand(24, 2) - 10, num)
    logs = [*model.feature_logs, *model.head_logs]
    means = [*model.features.parameters(), *model.head.parameters()]
    optimizer = torch.optim.Adam([{"params": means}, {"params": logs, "lr": 3e-2}], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        optimizer.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()
        schedule.step()
    return model


if __name__ == "__main__":
    torch.manual_seed(0)
    model = train()
    x, y = two_moons(1000)
    axis = torch.linspace(-10, 10, 81)
    p = model.predict(torch.cartesian_prod(axis, axis))
    entropy = torch.special.entr(p).sum(-1)
    print(f"accuracy {(model.predict(x).argmax(-1) == y).float().mean():.3f}")
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for ax, values, name in zip(axes, (p[:, 1], entropy), ("probability of class 1", "entropy, nats"), strict=True):
        figure.colorbar(ax.pcolormesh(axis, axis, values.reshape(81, 81).T), ax=ax)
        ax.scatter(*x[:200].T, c=y[:200], s=4, cmap="coolwarm")
        ax.set_title(name)
    figure.savefig("fsvi_in_one_file.png", dpi=90)
