"""The distribution of function values at context points that a distribution over parameters induces.

With α the feature layers and β the last linear layer, and R = 1 draw of α (method section 3.1 of the paper):

- `jvp`: f̃(X) ~ N((Φ + J_α(α − μ_α)) W + b, J_β S_β J_βᵀ), the features linearized about their means; one
  forward-mode pass gives Φ and its directional derivative together, and no Jacobian is ever formed.
- `conditional`: given a draw of α through the *real* network the function values are exactly Gaussian, so nothing is
  linearized. By convexity the KL averaged over draws bounds the KL of the mixture from above. Not in the paper.
- `exact`: f̃(X) ~ N(f(X; μ), J S Jᵀ) over all parameters and all outputs jointly. Small networks only.

Where only the last layer is stochastic, all three are the same closed form, and nothing is random.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.func import jacrev, jvp
from torch.nn.functional import pad

from fsvi.errors import InvalidInputError
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.plain_kernels import plain_kernels
from fsvi.networks.calls import evaluating, is_exporting
from fsvi.networks.heads import apply_head
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import Draw, MeanField
from fsvi.validation import first_line

_FORWARD_MODE = threading.RLock()
"""Torch's levels of forward mode belong to the process, not to a thread."""
_STEP = 1e-5

Linearization = Literal["jvp", "conditional", "exact"]
Linearizer: TypeAlias = Callable[[Network, MeanField, Any, Draw | None], FunctionGaussian]
"""The distribution of function values at points; the draw is None where only the last layer is stochastic."""


def linearize_jvp(network: Network, q: MeanField, x: Any, draw: Draw | None) -> FunctionGaussian:
    """The paper's estimator: features linearized about their means along the draw, last layer in closed form."""
    if draw is None:
        return linearize_conditional(network, q, x, None)
    features, change = features_jvp(network, draw.shift, x)
    return last_layer(network, q, features, head_outputs(network, features + change))


def linearize_conditional(network: Network, q: MeanField, x: Any, draw: Draw | None) -> FunctionGaussian:
    """Features of the real network at the draw, last layer in closed form about its mean."""
    with evaluating(network.module):
        features = network.features(x, {**(draw.params if draw else {}), **_statistics(network)})
    return last_layer(network, q, features, head_outputs(network, features))


def linearize_exact(network: Network, q: MeanField, x: Any, draw: Draw | None = None) -> FunctionGaussian:
    """The whole Jacobian: all outputs at all points as one joint Gaussian of K·Q values."""
    if not has_stochastic_features(network, q) and not network.is_tied:
        return linearize_conditional(network, q, x, None)
    statistics = _statistics(network)

    def outputs(means: dict[str, Tensor]) -> Tensor:
        return network(x, {**means, **statistics}).reshape(-1)

    with evaluating(network.module), plain_kernels():
        jacobian = jacrev(outputs)(q.means())
        mean = outputs(q.means())
    rows = torch.stack([q.layout.join(row) for row in zip(*(jacobian[name] for name in q.layout.shapes), strict=True)])
    return FunctionGaussian(mean[:, None], rows, (2 * q.log_std).exp()[None], outputs_joined=network.num_outputs)


LINEARIZERS: dict[str, Linearizer] = {
    "jvp": linearize_jvp,
    "conditional": linearize_conditional,
    "exact": linearize_exact,
}


def linearized_outputs(network: Network, shift: Mapping[str, Tensor], x: Any) -> tuple[Tensor, Tensor]:
    """f(x; mean) and J(x)·shift, the outputs of the linearized network at mean + `shift`, each (n, outputs).

    One forward-mode pass gives both; J is the Jacobian by all stochastic parameters and is never formed.
    """
    if is_exporting():
        return _difference(network, shift, x)
    features, change = features_jvp(network, shift, x)
    weight, *_ = network.linear.parameters()
    moved = apply_head(features, *(shift[name] for name in network.head_names)) + apply_head(change, weight)
    return head_outputs(network, features), moved


def _difference(network: Network, shift: Mapping[str, Tensor], x: Any) -> tuple[Tensor, Tensor]:
    """`linearized_outputs` by a central difference in float64, because torch.export does not follow forward mode."""
    module = network.module
    own = {
        name: t.double() for name, t in (*module.named_parameters(), *module.named_buffers()) if t.is_floating_point()
    }
    double = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
    x = double(x) if isinstance(x, Tensor) else x.map(double)
    low, high = (
        network(x, {**own, **{name: own[name] + step * change for name, change in shift.items()}})
        for step in (-_STEP, _STEP)
    )
    like = next(iter(shift.values())).dtype
    return (0.5 * (low + high)).to(like), ((high - low) / (2 * _STEP)).to(like)


def check_linearization(linearize: str, network: Network, q: MeanField, x: Any) -> None:
    """Refuse a network that torch cannot linearize, or whose linearization it cannot differentiate again.

    Some layers have no forward-mode derivative, or a derivative without a gradient. A linearization and a backward
    pass at two inputs find them before training starts; the random state does not change.
    """
    if linearize == "conditional" or not has_stochastic_features(network, q):
        return
    try:
        with torch.enable_grad():
            values = LINEARIZERS[linearize](network, q, x, q.at(torch.ones_like(q.log_std)))
            total = values.mean.sum() + values.factor.sum()
            torch.autograd.grad(total, [*q.means().values(), q.log_std], allow_unused=True)
    except RuntimeError as error:
        raise InvalidInputError(
            f'linearize="{linearize}" does not work with this network, because torch cannot differentiate one of its '
            f'layers twice ({first_line(error)}): use linearize="conditional".'
        ) from error


def has_stochastic_features(network: Network, q: MeanField) -> bool:
    """Whether any layer before the head is stochastic."""
    return not q.layout.shapes.keys() <= set(network.head_names)


def features_jvp(network: Network, shift: Mapping[str, Tensor], x: Any) -> tuple[Tensor, Tensor]:
    """Φ(x) at the network's own parameters, and its derivative in the direction `shift`, by one forward-mode pass."""
    own, statistics = dict(network.module.named_parameters()), _statistics(network)
    moving = {name: direction for name, direction in shift.items() if name not in network.head_names}

    def features(means: dict[str, Tensor]) -> Tensor:
        return network.features(x, {**means, **statistics})

    # not `autograd.forward_ad`: there softmax works in place, and its derivative cannot be differentiated again
    with _FORWARD_MODE, evaluating(network.module), plain_kernels():
        value, change = jvp(features, ({name: own[name] for name in moving},), (moving,))[:2]
    return value, change


def head_outputs(network: Network, features: Tensor) -> Tensor:
    """Φ Wᵀ + b with the means of the last layer."""
    return apply_head(features, *network.linear.parameters())


def last_layer(network: Network, q: MeanField, features: Tensor, mean: Tensor) -> FunctionGaussian:
    """For output k, N(mean[:, k], Φ diag(std_W[k]²) Φᵀ + std_b[k]² 11ᵀ)."""
    named = q.layout.views(q.log_std)
    logs = [named[name] for name in network.head_names]
    variances = (2 * torch.cat([log_std.reshape(len(logs[0]), -1) for log_std in logs], dim=1)).exp()
    return FunctionGaussian(mean, pad(features, (0, 1), value=1.0) if len(logs) > 1 else features, variances)


def _statistics(network: Network) -> dict[str, Tensor]:
    """Copies of BatchNorm's statistics: a later pass in training mode then cannot change what the backward reads."""
    return {name: buffer.clone() for name, buffer in network.module.named_buffers() if "running_" in name}
