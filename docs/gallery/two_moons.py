"""Two moons

An ordinary network is sure everywhere. FSVI is unsure at the context, here a box around the data.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

x, y = fsvi.data.two_moons(200, noise=0.2, seed=0)
box = fsvi.contexts.Uniform(low=[-6, -6], high=[6, 6])
methods = {}
for name in ("MAP", "FSVI"):
    torch.manual_seed(0)
    net = fsvi.networks.mlp(2, (30, 30), 2, torch.nn.Tanh)
    methods[name] = fsvi.MAP(net, fsvi.Categorical()) if name == "MAP" else fsvi.FSVI(net, fsvi.Categorical(), box)
    fsvi.fit(methods[name], (x, y), seed=0)

line = torch.linspace(-5, 5, 80)
grid = torch.cartesian_prod(line, line)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for ax, (name, method) in zip(axes, methods.items(), strict=True):
    entropy = method.predict(grid).entropy().reshape(80, 80)
    image = ax.pcolormesh(line, line, entropy.T, vmin=0, vmax=0.7)
    ax.scatter(*x.T, c=y, s=5, cmap="coolwarm")
    ax.set_title(name)
figure.colorbar(image, ax=axes, label="entropy, nats")
figure.savefig("two_moons.png", dpi=90)
