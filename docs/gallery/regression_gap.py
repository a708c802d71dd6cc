"""Regression with a gap

No data between −0.5 and 0.7: the band between the 5% and the 95% quantile widens there and outside of the data.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import fsvi

torch.manual_seed(0)
x = torch.cat([torch.rand(40, 1) - 1.5, torch.rand(40, 1) + 0.7])
y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
net = nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1))
context = fsvi.contexts.Uniform(low=[-3], high=[3])
prior = fsvi.priors.Constant(variance=4.0)
method = fsvi.FSVI(net, fsvi.Gaussian(noise=0.1), context, prior=prior)
fsvi.fit(method, (x, y), epochs=600, lr=5e-3, seed=0)

line = torch.linspace(-3, 3, 200)[:, None]
p = method.predict(line, num_samples=200)
low, high = p.quantile(0.05)[:, 0], p.quantile(0.95)[:, 0]
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.fill_between(line[:, 0], low, high, alpha=0.3, label="90% of predictions")
ax.plot(line, p.mean, label="mean")
ax.scatter(x, y, s=8, color="black", label="data")
ax.set(ylim=(-4, 4), xlabel="x", ylabel="y")
ax.legend(loc="lower left")
figure.savefig("regression_gap.png", dpi=90)
