"""Targets of other kinds

Counts, numbers with outliers, and noise that grows: the same network and context, three likelihoods, 90% intervals.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

torch.manual_seed(0)
x = 4 * torch.rand(150, 1) - 2
wave = torch.sin(2 * x)
outliers = 2 * torch.randn(150, 1) * (torch.rand(150, 1) < 0.1)
cases = {
    "Poisson(): counts": (fsvi.Poisson(), torch.poisson((1 + wave).exp()), 1),
    "StudentT(): outliers": (fsvi.StudentT(), wave + 0.1 * torch.randn(150, 1) + outliers, 1),
    "Gaussian(heteroscedastic=True)": (
        fsvi.Gaussian(heteroscedastic=True),
        wave + 0.1 * (x + 2.2) * torch.randn(150, 1),
        2,  # a mean and a log variance
    ),
}
line = torch.linspace(-4, 4, 100)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
for ax, (name, (likelihood, y, outputs)) in zip(axes, cases.items(), strict=True):
    net = fsvi.networks.mlp(1, (50, 50), outputs)
    method = fsvi.FSVI(net, likelihood, fsvi.contexts.Uniform(low=[-4], high=[4]), kl_weight=1e-3)
    fsvi.fit(method, (x, y), epochs=300, seed=0)
    p = method.predict(line, num_samples=50)
    low, high = p.quantile([0.05, 0.95]).squeeze(-1)
    ax.fill_between(line[:, 0], low, high, alpha=0.3, label="90% of new targets")
    ax.plot(line, p.mean)
    ax.scatter(x, y, s=5, color="black")
    ax.set_title(name)
axes[0].legend()
figure.savefig("likelihoods.png", dpi=90)
