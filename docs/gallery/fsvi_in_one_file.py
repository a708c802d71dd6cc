"""FSVI in one file

The method by hand, without importing fsvi: a Gaussian over parameters, the functions that it implies, and their KL at
context points.
"""

import math

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.func import functional_call, jacrev, vmap

torch.manual_seed(0)
inputs, labels = make_moons(200, noise=0.2, random_state=0)
x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
net = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 2))

# q(θ) = N(mean, diag(std²)): the network's parameters are the mean.
mean = dict(net.named_parameters())
log_std = {name: torch.full_like(value, math.log(0.05)).requires_grad_() for name, value in mean.items()}


def draw():
    """θ = mean + std · ε."""
    return {name: mean[name] + log_std[name].exp() * torch.randn_like(mean[name]) for name in mean}


def functions_at(points):
    """q(f) at the points: f(x) ≈ f(x; mean) + J (θ − mean) is Gaussian. Means (K, C), covariances (C, K, K)."""
    center = functional_call(net, mean, points)
    jacobians = vmap(jacrev(lambda params, point: functional_call(net, params, point)), (None, 0))(mean, points)
    covariance = 0
    for name, jacobian in jacobians.items():  # (K, C, shape of the parameter)
        rows = jacobian.flatten(2).transpose(0, 1)  # (C, K, numbers)
        covariance = covariance + (rows * (2 * log_std[name]).exp().flatten()) @ rows.mT
    return center, covariance


def kl(center, covariance, prior_variance=0.5, nugget=1e-4):
    """Σ over outputs of KL(N(center, covariance) ‖ N(0, prior_variance · I)), both with a nugget."""
    points, outputs = center.shape
    variance = prior_variance + nugget
    covariance = covariance + nugget * torch.eye(points)
    trace = covariance.diagonal(dim1=1, dim2=2).sum() / variance
    distance = center.square().sum() / variance
    log_determinants = points * outputs * math.log(variance) - torch.logdet(covariance).sum()
    return 0.5 * (trace + distance - points * outputs + log_determinants)


def step(num_context=16):
    """The negative evidence lower bound per example: −log p(y | f(x; θ)) + KL at random context points / N."""
    context = 12 * torch.rand(num_context, 2) - 6
    nll = nn.functional.cross_entropy(functional_call(net, draw(), x), y)
    return nll + kl(*functions_at(context)) / len(x)


optimizer = torch.optim.Adam([*mean.values(), *log_std.values()], lr=1e-2)
for _ in range(1000):
    optimizer.zero_grad()
    step().backward()
    optimizer.step()

line = torch.linspace(-5, 5, 80)
grid = torch.cartesian_prod(line, line)
with torch.no_grad():  # p(y | x) is the average of the draws' probabilities
    p = torch.stack([functional_call(net, draw(), grid).softmax(1) for _ in range(50)]).mean(0)
entropy = -(p * p.log()).sum(1)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, values, name in zip(axes, (p[:, 1], entropy), ("probability of class 1", "entropy, nats"), strict=True):
    figure.colorbar(ax.pcolormesh(line, line, values.reshape(80, 80).T), ax=ax)
    ax.scatter(*x.T, c=y, s=4, cmap="coolwarm")
    ax.set_title(name)
figure.savefig("fsvi_in_one_file.png", dpi=90)
