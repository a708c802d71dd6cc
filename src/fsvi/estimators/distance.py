"""FSVI around a trained network: a Gaussian process on random features of it, in closed form.

The function is the trained network's plus a Gaussian process g(x) = w·φ(x) on the random features φ of
`DistanceFeatures`, with the prior w ~ N(0, v I). FSVI's objective is

    Σₙ E log p(yₙ | f(xₙ)) − KL(q(f) ‖ p(f)),

where the KL between functions w·φ is that between their weights, so no context points are drawn. With the mean kept at
the trained network's, the best covariance for a Gaussian likelihood is (Φᵀ Λ Φ + I/v)⁻¹, where Λ is the diagonal of the
Fisher information at the network's predictions: the noise's precision, or p(1 − p) for classes. The features are
rotated to the eigenvectors of Φᵀ Λ Φ, where this covariance is diagonal: exactly for one output or one noise, nearly
for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import ShiftedRows
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Gaussian
from fsvi.methods.base import Method
from fsvi.methods.fsvi import FSVI
from fsvi.methods.registry import make_method
from fsvi.networks.copies import deep_copy
from fsvi.networks.network import Network
from fsvi.networks.tabular import DistanceFeatures

NUM_FEATURES = 512
_TINY = 1e-6
"""The standard deviation of weights that stay as trained."""
_ROWS = 2_000


def with_distance(network: Network, columns: int, num_features: int = NUM_FEATURES) -> nn.Sequential:
    """The network's features next to random ones, and its last layer, which does not see the latter yet."""
    last = network.linear
    if not isinstance(last, nn.Linear):
        raise InvalidInputError(f"module ends with {last}: a table needs a network that ends with a dense layer.")
    trunk = nn.Sequential(deep_copy(network.module))  # a parent even for a network that is nothing but its last layer
    parent, _, name = f"0.{network.head}".rstrip(".").rpartition(".")
    setattr(trunk.get_submodule(parent), name, nn.Identity())
    features = DistanceFeatures(trunk[0], columns, last.in_features, num_features).to(last.weight)
    head = nn.Linear(features.out_features, last.out_features).to(last.weight)
    with torch.no_grad():
        head.weight.zero_()[:, : last.in_features] = last.weight
        head.bias.copy_(torch.zeros_like(head.bias) if last.bias is None else last.bias)
    return nn.Sequential(features, head)


def distance_aware(point: Method, x: Tensor, weights: Tensor, settings: Mapping[str, Any]) -> FSVI:
    """FSVI whose mean is the function of a trained network and whose variance knows the distance from the rows `x`."""
    network, likelihood, given = point.network, point.likelihood, dict(settings)
    if isinstance(likelihood, Gaussian) and likelihood.learn_noise:
        likelihood = Gaussian(likelihood.noise.tolist())
    variance = float(given.pop("prior_variance", 1.0))
    net = with_distance(network, x.shape[1], given.pop("num_features", NUM_FEATURES))
    is_doubled = getattr(likelihood, "heteroscedastic", False)  # log variances are not outputs of the function
    num_outputs = network.num_outputs // 2 if is_doubled else network.num_outputs

    def function(rows: Tensor) -> Tensor:
        """Means of targets, or logits with mean zero."""
        f = network(rows)[:, :num_outputs]
        return f if likelihood.is_numeric else f - f.mean(1, keepdim=True)

    features: Any = net[0]
    features.see(x, function)
    given = {"context": ShiftedRows(), "prior": Constant(variance), "stochastic": "last_layer", **given}
    method: Any = make_method("fsvi", net, likelihood, **given)
    method.num_data = round(float(weights.sum()))
    method.check_inputs(x[:2])
    method.eval()
    _condition(method, x, weights, variance, num_outputs)
    trained: FSVI = method
    return trained


@torch.no_grad()
def _condition(method: FSVI, x: Tensor, weights: Tensor, variance: float, num_outputs: int) -> None:
    """Set the posterior to the optimum in closed form, and rotate the features."""
    features: Any = method.net[0]  # type: ignore[index]
    hidden, axes = features.num_hidden, features.random.axes

    def parts() -> Iterator[tuple[Tensor, Tensor]]:
        """Φ but for the trend, which is zero on training rows, and Λ, (n, outputs)."""
        for rows, counts in zip(x.split(_ROWS), weights.split(_ROWS), strict=True):
            phi = method.network.features(rows)
            roots = method.likelihood.fisher_root(method.network.linear(phi).double())[:, :num_outputs]
            yield phi[:, hidden:-1].double(), counts[:, None].double() * roots.square().sum(-1)

    shared: Any = sum(phi.T @ (phi * precisions.mean(1, keepdim=True)) for phi, precisions in parts())
    values, vectors = torch.linalg.eigh(shared)
    axes.copy_(axes.double() @ vectors.flip(1))
    if num_outputs == 1:  # then Φᵀ Λ Φ is diagonal now
        total: Any = values.flip(0)[None].clamp_min(0)
    else:
        total = sum(precisions.T @ phi.square() for phi, precisions in parts())
    stds = method.posterior.layout.views(method.posterior.log_std.data)
    weight, bias = (stds[name] for name in method.network.head_names)
    bias.fill_(_TINY).log_()
    weight.fill_(_TINY).log_()
    weight[:num_outputs, hidden:] = -0.5 * (F.pad(total, (0, 1)) + 1 / variance).log().to(weight)
