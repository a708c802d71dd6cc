"""Gaussian priors over a network's parameters: which have one, its density, and the divergence from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.parameters import deterministic_names
from fsvi.variational.gradient_buffer import gradient_of

_PART = 2**18
"""How many squares are summed in one go; the rounding errors of longer sums would add up."""


def prior_names(net: nn.Module) -> list[str]:
    """The parameters that have a prior: all trainable ones except the scale and shift of BatchNorm and InstanceNorm."""
    skip = deterministic_names(net)
    names = [name for name, p in net.named_parameters() if p.requires_grad and name not in skip]
    if not names:
        raise InvalidInputError(
            "every parameter of the network is frozen: leave requires_grad=True on what is to learn."
        )
    return names


def negative_log_normal(tensors: Sequence[Tensor], variance: float) -> Tensor:
    """−log N(·; 0, variance·I) over the entries of all tensors, up to a constant.

    Args:
        tensors: The tensors.
        variance: The prior's variance.
    """
    return 0.5 / variance * _squared_norm(tensors)


@torch.no_grad()
def add_normal_gradient(
    parameters: Sequence[Tensor], variance: float, weight: float, others: Iterable[Tensor] = ()
) -> Tensor:
    """−log N(·; 0, variance·I) as in `negative_log_normal`; `weight` times its gradient is added to every `grad`.

    Args:
        parameters: Leaves of the graph.
        variance: The prior's variance.
        weight: A factor on the gradient.
        others: Leaves without this prior, whose gradients may share memory with those of `parameters`.
    """
    own = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
    every = [*own, *(p.grad for p in others if p.grad is not None and not p.grad.is_sparse)]
    if len({gradient.untyped_storage()._cdata for gradient in every}) < len(every):  # some share memory
        own = [gradient.clone() for gradient in own]
    torch._foreach_add_(own, list(parameters), alpha=weight / variance)
    for parameter, gradient in zip(parameters, own, strict=True):
        parameter.grad = gradient
    return negative_log_normal(parameters, variance)


def normal_kl(mean: Tensor, log_std: Tensor, prior_mean: Tensor | float, prior_variance: float) -> Tensor:
    """KL(N(mean, diag(exp(log_std)²)) ‖ N(prior_mean, prior_variance·I)), a scalar.

    ½ Σᵢ [(stdᵢ² + (meanᵢ − prior_meanᵢ)²) / prior_variance − 1 + log prior_variance − 2 log_stdᵢ]
    """
    return centred_kl(mean - prior_mean, log_std, (2 * log_std).exp(), prior_variance)


def centred_kl(mean: Tensor, log_std: Tensor, variance: Tensor, prior_variance: float) -> Tensor:
    """`normal_kl` with a prior mean of zero, where the variances are known.

    Args:
        mean: The mean.
        log_std: The log standard deviations.
        variance: The variances, exp(log_std)².
        prior_variance: The variance of the prior.
    """
    squares = variance.sum() + _squared_norm([mean])
    return 0.5 * (squares / prior_variance + mean.numel() * (math.log(prior_variance) - 1)) - log_std.sum()


@torch.no_grad()
def add_normal_kl_gradient(
    mean: Tensor, log_std: Tensor, variance: Tensor, prior_variance: float, weight: float
) -> Tensor:
    """`centred_kl`; `weight` times its gradient is added to the `grad` of the mean and of the log standard deviations:

        ∂KL/∂mean = mean / prior_variance,    ∂KL/∂log_std = variance / prior_variance − 1.

    Args:
        mean: The mean, a leaf of the graph.
        log_std: The log standard deviations, a leaf too.
        variance: The variances, exp(log_std)².
        prior_variance: The variance of the prior.
        weight: A factor on the gradient.
    """
    gradient_of(mean).add_(mean, alpha=weight / prior_variance)
    gradient_of(log_std).add_(variance, alpha=weight / prior_variance).sub_(weight)
    return centred_kl(mean, log_std, variance, prior_variance)


def _squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Σ t² over the entries of all tensors."""
    parts = [part for tensor in tensors for part in tensor.flatten().split(_PART)]
    return torch.stack([torch.dot(part, part) for part in parts]).sum()
