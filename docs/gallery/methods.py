"""Every method on the same data

The same network, data and epochs: bright is unsure. The last six have a context, a box around the data. After this
short training, four of them doubt what is away from the data; without a context, only SNGP does.
"""

import matplotlib.pyplot as plt
import torch

import fsvi
from fsvi.methods import FixedMeanFSVI

x, y = fsvi.data.two_moons(200, noise=0.2, seed=0)
likelihood = fsvi.Categorical()
box = fsvi.contexts.Uniform(low=[-6, -6], high=[6, 6])


def network():
    """A network with parameters of its own."""
    return fsvi.networks.mlp(2, (30, 30), 2)


def trained():
    """A network that was trained as usual."""
    plain = fsvi.MAP(network(), likelihood)
    fsvi.fit(plain, (x, y), epochs=100, seed=0)
    return plain.network


torch.manual_seed(0)
methods = [
    fsvi.MAP(network(), likelihood),
    fsvi.Ensemble(lambda: fsvi.MAP(network(), likelihood), size=5),
    fsvi.MCDropout(network(), likelihood),
    fsvi.SWAG(network(), likelihood),
    fsvi.Laplace(network(), likelihood),
    fsvi.MFVI(network(), likelihood, kl_weight=fsvi.Tempered(0.1)),
    fsvi.RadialMFVI(network(), likelihood, kl_weight=fsvi.Tempered(0.1)),
    fsvi.IVON(network(), likelihood),
    fsvi.VOGN(network(), likelihood),
    fsvi.Rank1(network(), likelihood),
    fsvi.VBLL(network(), likelihood),
    fsvi.DUQ(network(), likelihood),
    fsvi.SNGP(network(), likelihood),
    fsvi.FMGP(trained(), likelihood),
    FixedMeanFSVI(trained(), likelihood, box),
    fsvi.FBNN(network(), likelihood, box),
    fsvi.SPG(network(), likelihood, box, num_prior_steps=200),
    fsvi.FSEB(network(), likelihood, box),
    fsvi.GFSVI(network(), likelihood, box),
    fsvi.FSVI(network(), likelihood, box),
]
line = torch.linspace(-5, 5, 50)
grid = torch.cartesian_prod(line, line)
figure, axes = plt.subplots(4, 5, figsize=(10, 8), sharex=True, sharey=True, layout="constrained")
for ax, method in zip(axes.flat, methods, strict=True):
    fsvi.fit(method, (x, y), epochs=100, seed=0)
    entropy = method.predict(grid, num_samples=30).entropy().reshape(50, 50)
    image = ax.pcolormesh(line, line, entropy.T, vmin=0, vmax=0.7)
    ax.scatter(*x.T, c=y, s=2, cmap="coolwarm")
    ax.set_title(type(method).__name__)
figure.colorbar(image, ax=axes, label="entropy, nats", shrink=0.5)
figure.savefig("methods.png", dpi=80)
