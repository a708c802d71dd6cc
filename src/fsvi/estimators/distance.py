"""FSVI around a trained network: a Gaussian process on random features of it, in closed form.

The function is the trained network's plus a Gaussian process g(x) = w·φ(x) on the random features φ of
`DistanceFeatures`, whose prior is w ~ N(0, v I), with v = 1 unless a setting says otherwise. FSVI's objective with this
prior over functions is

    Σₙ E log p(yₙ | f(xₙ)) − KL(q(f) ‖ p(f)),

where the KL between Gaussians over functions w·φ is that between their weights, as it is at any context set at which
the features are linearly independent. So no context points are drawn. With the mean kept at the trained network's, the
best covariance for a Gaussian likelihood is (Φᵀ Λ Φ + I/v)⁻¹ with the precisions Λ of the noise; for classes, Λ is the
curvature p(1 − p) of the log-likelihood at the network's predictions. The features are rotated to the eigenvectors of
Φᵀ Λ Φ, where this covariance is diagonal: exactly for one output or one noise, nearly for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Context, ShiftedRows
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.fsvi import FSVI
from fsvi.methods.registry import make_method
from fsvi.networks.copies import deep_copy
from fsvi.networks.network import Network
from fsvi.networks.tabular import DistanceFeatures

NUM_FEATURES = 512
_TINY = 1e-6
"""The standard deviation of weights that stay as trained."""
_ROWS = 10_000


def with_distance(network: Network, columns: int, num_features: int = NUM_FEATURES) -> nn.Sequential:
    """The network's features next to random ones, and its last layer, which does not see the latter yet.

    Args:
        network: A network with a dense last layer, examined on rows of a table.
        columns: The number of columns.
        num_features: The number of random features.
    """
    last = network.linear
    if not isinstance(last, nn.Linear):
        raise InvalidInputError(f"module ends with {last}: a table needs a network that ends with a dense layer.")
    trunk = _Holder(deep_copy(network.module))
    parent, _, name = f"module.{network.head}".rstrip(".").rpartition(".")
    setattr(trunk.get_submodule(parent), name, nn.Identity())
    features = DistanceFeatures(trunk.module, columns, last.in_features, num_features).to(last.weight)
    head = nn.Linear(features.out_features, last.out_features).to(last.weight)
    with torch.no_grad():
        head.weight.zero_()[:, : last.in_features] = last.weight
        head.bias.copy_(torch.zeros_like(head.bias) if last.bias is None else last.bias)
    return nn.Sequential(features, head)


class _Holder(nn.Module):
    """A parent, so that a network which is nothing but a last layer can be replaced like any other."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def distance_aware(
    network: Network, likelihood: Likelihood, x: Tensor, weights: Tensor, settings: Mapping[str, Any]
) -> FSVI:
    """FSVI whose mean is the trained network's function and whose variance knows the distance from the data.

    Args:
        network: The trained network, examined on rows.
        likelihood: The likelihood, with the noise that held-out rows have.
        x: Training rows as the network sees them.
        weights: How many times each of them counts.
        settings: `prior_variance` and `num_features`, and arguments of `FSVI` for further training.
    """
    given = dict(settings)
    variance = float(given.pop("prior_variance", 1.0))
    net = with_distance(network, x.shape[1], given.pop("num_features", NUM_FEATURES))
    features: Any = net[0]
    features.see(x, lambda rows: _function(likelihood, network(rows)))
    context: Context = given.pop("context", None) or ShiftedRows()
    given = {"prior": Constant(variance), "stochastic": "last_layer", **given}
    method: Any = make_method("fsvi", net, likelihood, context=context, **given)
    method.num_data = round(float(weights.sum()))
    method.check_inputs(x[:2])
    method.eval()
    condition(method, x, weights, variance)
    trained: FSVI = method
    return trained


@torch.no_grad()
def condition(method: FSVI, x: Tensor, weights: Tensor, variance: float) -> None:
    """Set the posterior of a network of `with_distance` to the optimum in closed form, and rotate its features.

    Args:
        method: The method.
        x: Training rows.
        weights: How many times each of them counts.
        variance: The prior variance of the weights.
    """
    features: Any = method.net[0]  # type: ignore[index]
    hidden, axes = features.num_hidden, features.random.axes
    shared: Any = 0.0
    for part, counts in zip(x.split(_ROWS), weights.split(_ROWS), strict=True):
        phi, precisions = _looked_at(method, hidden, part, counts)
        shared = shared + phi.T @ (phi * precisions.mean(1, keepdim=True))
    values, vectors = torch.linalg.eigh(shared)
    axes.copy_(axes.double() @ vectors.flip(1))
    num_means = precisions.shape[1]
    total: Any = (
        values.flip(0).clamp_min(0.0)[None] if num_means == 1 else torch.zeros(num_means, len(values)).to(values)
    )
    if num_means > 1:
        for part, counts in zip(x.split(_ROWS), weights.split(_ROWS), strict=True):
            phi, precisions = _looked_at(method, hidden, part, counts)
            total += precisions.T @ phi.square()
    stds = method.posterior.layout.views(method.posterior.log_std.data)
    weight, bias = (stds[name] for name in method.network.head_names)
    bias.fill_(_TINY).log_()
    weight.fill_(_TINY).log_()
    weight[:num_means, hidden:] = -0.5 * (F.pad(total, (0, 1)) + 1 / variance).log().to(weight)


def _looked_at(method: FSVI, hidden: int, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Φ but for the trend, zero on training rows, and how much each row says about each output, (n, outputs)."""
    features = method.network.features(x)
    outputs = method.network.linear(features)
    return features[:, hidden:-1].double(), _precisions(method.likelihood, outputs.double(), weights[:, None].double())


def _function(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """The outputs that are means of targets, or logits with mean zero."""
    if not isinstance(likelihood, Gaussian):
        return outputs - outputs.mean(1, keepdim=True)
    return outputs.chunk(2, -1)[0] if likelihood.heteroscedastic else outputs


def _precisions(likelihood: Likelihood, outputs: Tensor, weights: Tensor) -> Tensor:
    """Λ, (n, outputs); log variances are not among the outputs of the function."""
    if not isinstance(likelihood, Gaussian):
        p = outputs.softmax(-1)
        return weights * p * (1 - p)
    if likelihood.heteroscedastic:
        return weights * (-outputs.chunk(2, -1)[1]).exp()
    return weights / likelihood.noise.double().square().expand_as(outputs)
