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

from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp
from torch.nn.functional import pad

from fsvi.errors import InvalidInputError
from fsvi.functions.forward_mode import Dual, plain_kernels
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.networks.heads import apply_head, recording
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.validation import first_line
from fsvi.variational import GradientBuffer, MeanField

Linearization = Literal["jvp", "conditional", "exact"]

_WITHOUT_RULES: WeakSet[nn.Module] = WeakSet()
"""Networks that a `Dual` does not get through."""


Parameters: TypeAlias = MeanField | GradientBuffer
"""A distribution over parameters: the posterior itself, or its leaves during a training step."""


class Linearizer(Protocol):
    """The distribution of function values at `x`; `shift` is a draw of the stochastic parameters minus their mean."""

    def __call__(self, network: Network, q: Parameters, x: Tensor, shift: Tensor | None) -> FunctionGaussian:
        """The distribution at `x`."""


def linearize_jvp(network: Network, q: Parameters, x: Tensor, shift: Tensor | None) -> FunctionGaussian:
    """The paper's estimator: features linearized about their means along `shift`, last layer in closed form."""
    params = q.params()
    if shift is None or not has_stochastic_features(network, q):
        return last_layer(network, q, *_with_outputs(network, params, x))
    features, change = features_jvp(network, params, q.directions(shift), x)
    moved = features if change is None else features + change
    return last_layer(network, q, features, head_outputs(network, params, moved))


def linearize_conditional(network: Network, q: Parameters, x: Tensor, shift: Tensor | None) -> FunctionGaussian:
    """Features of the real network at mean + `shift`, last layer in closed form about its mean."""
    if shift is None:
        return linearize_jvp(network, q, x, None)
    features, _ = _with_outputs(network, q.params(shift), x)
    return last_layer(network, q, features, head_outputs(network, q.params(), features))


def linearize_exact(network: Network, q: Parameters, x: Tensor, shift: Tensor | None = None) -> FunctionGaussian:
    """The whole Jacobian: all outputs at all points as one joint Gaussian of K·Q values."""
    if not has_stochastic_features(network, q):
        return linearize_jvp(network, q, x, None)
    points = q.point_layout.views(q.point)

    def outputs(mean: Tensor) -> Tensor:
        tensors = {**q.layout.views(mean), **points, **_buffers(network)}
        return network(x, tensors).reshape(-1)

    with evaluating(network.module), plain_kernels():
        jacobian = jacrev(outputs)(q.mean)
        mean = outputs(q.mean)
    return FunctionGaussian(mean[:, None], jacobian, (2 * q.log_std).exp()[None], outputs_joined=network.num_outputs)


def linearized_outputs(network: Network, q: Parameters, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """f(x; mean) and J(x)·shift, the outputs of the linearized network at mean + `shift`, each (n, outputs).

    One forward-mode pass gives both; J is the Jacobian by all stochastic parameters and is never formed.
    """
    params, directions, names = q.params(), q.directions(shift), network.head_names
    features, change = features_jvp(network, params, directions, x)
    value = head_outputs(network, params, features)
    moved = head_outputs(network, directions, features)
    return value, moved if change is None else moved + apply_head(change, params[names[0]])


def check_linearization(linearize: str, network: Network, q: MeanField, x: Tensor) -> None:
    """Refuse a network that torch cannot linearize, or whose linearization it cannot differentiate again.

    Some layers have no forward-mode derivative, or a derivative without a gradient. A linearization and a backward
    pass at two inputs find them before training starts; the random state does not change.
    """
    if linearize == "conditional" or not has_stochastic_features(network, q):
        return
    try:
        with torch.enable_grad():
            values = LINEARIZERS[linearize](network, q, x, q.log_std.exp())
            total = values.mean.sum() + values.factor.sum()
            torch.autograd.grad(total, [q.mean, q.log_std], allow_unused=True)
    except RuntimeError as error:
        raise InvalidInputError(
            f'linearize="{linearize}" does not work with this network, because torch cannot differentiate one of its '
            f'layers twice ({first_line(error)}): use linearize="conditional".'
        ) from error


LINEARIZERS: dict[str, Linearizer] = {
    "jvp": linearize_jvp,
    "conditional": linearize_conditional,
    "exact": linearize_exact,
}


def has_stochastic_features(network: Network, q: Parameters) -> bool:
    """Whether any layer before the head is stochastic."""
    return not q.layout.shapes.keys() <= set(network.head_names)


def features_jvp(
    network: Network, params: Mapping[str, Tensor], tangents: Mapping[str, Tensor], x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Φ(x) at `params`, and its derivative in the direction `tangents`, by one forward-mode pass; None is zero."""
    moving = [name for name in tangents if name not in network.head_names]
    if not torch.is_grad_enabled():
        params, tangents = ({name: tensor.detach() for name, tensor in each.items()} for each in (params, tangents))
    fixed = {**params, **_buffers(network)}

    def features(moved: dict[str, Tensor]) -> Tensor:
        return network.with_features(x, {**fixed, **moved})[0]

    with evaluating(network.module):
        if network.module not in _WITHOUT_RULES:
            # the hook keeps torch.compile away
            with suppress(Exception), recording(network.linear):
                result = features({name: Dual(params[name], tangents[name]) for name in moving})
                return (result.value, result.change) if isinstance(result, Dual) else (result, None)
        # not `autograd.forward_ad`: there softmax works in place, and its derivative cannot be differentiated again
        with plain_kernels():
            starts, directions = ({name: each[name] for name in moving} for each in (params, tangents))
            value, change = jvp(features, (starts,), (directions,))[:2]
        _WITHOUT_RULES.add(network.module)
    return value, change


def _with_outputs(network: Network, params: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and outputs in eval mode."""
    with evaluating(network.module):
        return network.with_features(x, {**params, **_buffers(network)})


def head_outputs(network: Network, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Φ Wᵀ + b with the last layer's parameters in `params`."""
    return apply_head(features, *(params[name] for name in network.head_names))


def last_layer(network: Network, q: Parameters, features: Tensor, mean: Tensor) -> FunctionGaussian:
    """For output k, N(mean[:, k], Φ diag(std_W[k]²) Φᵀ + std_b[k]² 11ᵀ)."""
    logs = q.log_stds(network.head_names)
    variances = (2 * torch.cat([log_std.reshape(len(logs[0]), -1) for log_std in logs], dim=1)).exp()
    has_bias = len(logs) > 1
    return FunctionGaussian(mean, pad(features, (0, 1), value=1.0) if has_bias else features, variances)


def _buffers(network: Network) -> dict[str, Tensor]:
    """Copies of the buffers: a later train-mode pass then cannot change what this pass's backward reads."""
    return {name: buffer.clone() for name, buffer in network.module.named_buffers()}
