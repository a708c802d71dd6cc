"""Ensembles of FSVI

An ensemble takes any method. Five members are surer about the boundary than one, and stay unsure away from the data.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

x, y = fsvi.data.two_moons(200, noise=0.2, seed=0)
box = fsvi.contexts.Uniform(low=[-6, -6], high=[6, 6])


def member():
    """One FSVI."""
    return fsvi.FSVI(fsvi.networks.mlp(2, (30, 30), 2), fsvi.Categorical(), box)


def plain():
    """One ordinary network."""
    return fsvi.MAP(fsvi.networks.mlp(2, (30, 30), 2), fsvi.Categorical())


torch.manual_seed(0)
methods = {
    "five networks": fsvi.Ensemble(plain, size=5),
    "one FSVI": member(),
    "five FSVI": fsvi.Ensemble(member, size=5),
}
line = torch.linspace(-5, 5, 80)
grid = torch.cartesian_prod(line, line)
x_test, y_test = fsvi.data.two_moons(500, noise=0.2, seed=1)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for ax, (name, method) in zip(axes, methods.items(), strict=True):
    fsvi.fit(method, (x, y), epochs=200, seed=0)
    image = ax.pcolormesh(line, line, method.predict(grid).entropy().reshape(80, 80).T, vmin=0, vmax=0.7)
    ax.scatter(*x.T, c=y, s=4, cmap="coolwarm")
    ax.set_title(f"{name}: test NLL {fsvi.metrics.nll(method.predict(x_test), y_test):.3f}")
figure.colorbar(image, ax=axes, label="entropy, nats")
figure.savefig("ensembles.png", dpi=90)
