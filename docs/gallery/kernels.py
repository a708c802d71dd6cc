"""Kernels as priors

A kernel says how smooth the function is. GFSVI follows the prior: a smooth one and a rough one, on the same data.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

x_raw, y_raw = fsvi.data.snelson()
x, y = ((values - values.mean()) / values.std() for values in (x_raw, y_raw))
lengthscale = 0.7
line = torch.linspace(-3, 9, 200)[:, None]
kernels = {"RBF": fsvi.kernels.RBF(lengthscale), "Matérn ½": fsvi.kernels.Matern(0.5, lengthscale)}

figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
for ax, (name, kernel) in zip(axes, kernels.items(), strict=True):
    torch.manual_seed(0)
    net = fsvi.networks.mlp(1, (200,), 1, torch.nn.Tanh)
    with torch.no_grad():  # units that bend all over the box, within some lengthscales each
        net[0].weight.normal_(std=2 / lengthscale)
        net[0].bias.copy_(-(net[0].weight * 3.5 * (2 * torch.rand(200, 1) - 1)).sum(1))
    method = fsvi.GFSVI(
        net,
        fsvi.Gaussian(noise=0.3),
        fsvi.contexts.Uniform(widen=0.5),
        prior=fsvi.priors.GaussianProcess(kernel=kernel),
        num_context=32,
        num_samples=2,
        stds=fsvi.posteriors.Stds(lr_scale=10.0),
    )
    fsvi.fit(method, (x, y), epochs=400, batch_size=len(x), lr=2e-2, seed=0)
    functions = method.predict((line - x_raw.mean()) / x_raw.std(), num_samples=100).samples.squeeze(2)
    mean, deviation = functions.mean(0), functions.std(0)
    ax.fill_between(line[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.3)
    ax.plot(line, functions[:4].T, lw=0.6, color="gray")
    ax.plot(line, mean)
    ax.scatter(x_raw, y, s=5, color="black")
    ax.set(title=name, ylim=(-4, 4))
figure.savefig("kernels.png", dpi=90)
