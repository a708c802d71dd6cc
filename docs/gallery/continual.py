"""Continual learning

The left half of the moons is learned first, then the right half without the left one. Fine-tuning forgets; S-FSVI
keeps the function.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

x, y = fsvi.data.two_moons(400, noise=0.1, seed=0)
first = x[:, 0] < 0.5
tasks = [(x[first], y[first]), (x[~first], y[~first])]
box = fsvi.contexts.Uniform(low=[-3, -3], high=[3, 3])
methods = {}
for name in ("fine-tuning", "S-FSVI"):
    torch.manual_seed(0)
    net = fsvi.networks.mlp(2, (50, 50), 2)
    if name == "S-FSVI":
        methods[name] = fsvi.SFSVI(net, fsvi.Categorical(), context=box, coreset=40, kl_weight=0.1)
    else:
        methods[name] = fsvi.MAP(net, fsvi.Categorical())
    fsvi.fit_tasks(methods[name], tasks, epochs=60, seed=0)

across, up = torch.linspace(-1.5, 2.5, 80), torch.linspace(-1, 1.5, 60)
grid = torch.cartesian_prod(across, up)
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for ax, (name, method) in zip(axes, methods.items(), strict=True):
    accuracy = [fsvi.metrics.accuracy(method.predict(*task[:1]), task[1]) for task in tasks]
    ax.pcolormesh(across, up, method.predict(grid).mean[:, 1].reshape(80, 60).T, cmap="coolwarm", vmin=0, vmax=1)
    ax.scatter(*x.T, c=y, s=5, cmap="coolwarm", edgecolors="black", linewidths=0.2)
    ax.set_title(f"{name}: first task {accuracy[0]:.2f}, second {accuracy[1]:.2f}")
figure.savefig("continual.png", dpi=90)
