"""Kernels as priors

The same data and network, three kernels: a prior says how the function goes on where there are no data.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import fsvi
from fsvi.functions.kernels import RBF, Linear, Periodic

torch.manual_seed(0)
x = torch.rand(60, 1) * 4 - 4
y = torch.sin(3 * x) + 0.3 * x + 0.1 * torch.randn_like(x)
line = torch.linspace(-4, 4, 200)[:, None]
kernels = {"RBF": RBF(lengthscale=0.5), "periodic": Periodic(period=2.09), "periodic + linear": Periodic(period=2.09) + Linear()}

figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
for ax, (name, kernel) in zip(axes, kernels.items(), strict=True):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    context = fsvi.contexts.Uniform(low=[-5], high=[5])
    prior = fsvi.priors.GaussianProcess(kernel=kernel)
    method = fsvi.GFSVI(net, fsvi.Gaussian(noise=0.1), context, prior=prior, num_context=40)
    fsvi.fit(method, (x, y), epochs=500, lr=1e-2, seed=0)
    p = method.predict(line, num_samples=100)
    ax.fill_between(line[:, 0], p.quantile(0.05)[:, 0], p.quantile(0.95)[:, 0], alpha=0.3)
    ax.plot(line, p.mean)
    ax.scatter(x, y, s=6, color="black")
    ax.set(title=name, ylim=(-4, 4))
figure.savefig("kernels.png", dpi=90)
